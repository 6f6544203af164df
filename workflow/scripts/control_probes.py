from crsbench.controls import collect_control_runs
from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table, write_table
from crsbench.score import load_scoring
from crsbench.studies.base import Inputs, write_study
from crsbench.studies.control_probes import control_probes

with told_in_one_sentence(snakemake.log[0]):
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
