from crsbench.calibration.cells import recalibrate_cell
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.core.threads import use_one_thread
from crsbench.evaluation.runs import CellFiles

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    use_one_thread()
    cell = CellFiles(
        files.manifest,
        dict(zip(params.seeds, files.splits, strict=True)),
        dict(zip(params.conditions, files.features, strict=True)),
        dict(zip(params.targets, files.targets, strict=True)),
        dict(zip(params.seeds, files.probes, strict=True)),
    )
    made = recalibrate_cell(cell, params.cases)
    names = {name: snakemake.wildcards[name] for name in ("encoder", "dataset")}
    for output, part in zip(snakemake.output, made.parts(), strict=True):
        write_table(output, part.assign(**names))
