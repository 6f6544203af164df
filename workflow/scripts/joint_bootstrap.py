from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table, write_table
from crsbench.score import load_reference, load_scoring
from crsbench.score.axes import MeasurePlan
from crsbench.score.joint import joint_bootstrap
from crsbench.score.resampling import read_resamples

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    made = joint_bootstrap(
        read_table(files.axes)[0],
        dict(zip(params.cells, map(read_resamples, files.resamples), strict=True)),
        MeasurePlan.by_dataset(read_table(files.runs)[0], params.shift),
        load_scoring(files.scoring),
        load_reference(files.reference) if files.get("reference") else None,
        params.floors,
        margin=params.margin,
    )
    overlaps = Overlaps.of_panel(params)
    write_table(snakemake.output.table, overlaps.add_to(made.table))
    write_table(snakemake.output.pairs, overlaps.add_to(made.pairs))
