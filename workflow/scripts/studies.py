from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.core.threads import use_one_thread
from crsbench.studies import studies
from crsbench.studies.base import write_study
from crsbench.studies.inputs import Inputs

with user_error_boundary(snakemake.log[0]):
    use_one_thread()
    output, params, known = snakemake.output, snakemake.params, studies()
    inputs = Inputs.of_job(snakemake.input, params)
    for name, file in zip(params.tables, output.tables, strict=True):
        write_table(file, getattr(inputs, name))
    overlaps = Overlaps.of_panel(params)
    for name, file, figure in zip(params.studies, output.studies, output.figures, strict=True):
        write_study(file, figure, name, known[name](inputs), overlaps)
