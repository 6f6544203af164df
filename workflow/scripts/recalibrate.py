from crsbench.calibration.cells import recalibrate_cell
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.core.threads import use_one_thread

with user_error_boundary(snakemake.log[0]):
    params = snakemake.params
    use_one_thread()
    made = recalibrate_cell(params.files, params.cases)
    names = {name: snakemake.wildcards[name] for name in ("encoder", "dataset")}
    for output, part in zip(snakemake.output, made.parts(), strict=True):
        write_table(output, part.assign(**names))
