from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table, write_table
from crsbench.evaluation.control_probes import collect_control_runs
from crsbench.score import load_scoring
from crsbench.studies.base import Inputs, write_study
from crsbench.studies.control_probes import control_probes

with user_error_boundary(snakemake.log[0]):
    files, output, params = snakemake.input, snakemake.output, snakemake.params
    control = collect_control_runs(files.control)
    inputs = Inputs(
        *(read_table(files[name])[0] for name in ("runs", "axes", "crs")),
        scoring=load_scoring(files.scoring),
        reference=None,
        encoders=params.encoders,
        datasets=params.datasets,
        targets=params.targets,
        settings={},
    )
    write_table(output.runs, control)
    study = control_probes(inputs, control)
    write_study(output.study, output.figure, "control_probes", study)
