from pathlib import Path

from crsbench.config.load import load_config
from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread
from crsbench.studies.base import Inputs, write_study
from crsbench.studies.case_studies import run_case_studies

with user_error_boundary(snakemake.log[0]):
    use_one_thread()
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    files, params = snakemake.input, snakemake.params
    inputs = Inputs.read(files, params)
    studies = run_case_studies(config, inputs, params.names)
    for (name, study), table, figure in zip(
        studies.items(), snakemake.output.tables, snakemake.output.figures, strict=True
    ):
        write_study(table, figure, name, study, Overlaps.of_panel(params))
