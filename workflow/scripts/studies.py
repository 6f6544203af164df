from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.studies import run_study
from crsbench.studies.base import Inputs, write_study

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    inputs = Inputs.read(files, params)
    overlaps = Overlaps.of_panel(params)
    outputs = zip(params.studies, snakemake.output.tables, snakemake.output.figures, strict=True)
    for name, table, figure in outputs:
        write_study(table, figure, name, run_study(name, inputs), overlaps)
