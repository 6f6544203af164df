from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table, write_table
from crsbench.score import load_reference, load_scoring
from crsbench.score.tables import score_tables

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    tables = score_tables(
        read_table(files.runs)[0],
        load_scoring(files.scoring),
        params.shift,
        reference=load_reference(files.reference) if files.get("reference") else None,
        floors=params.floors,
        replicates=params.replicates,
    )
    overlaps = Overlaps.of_panel(params)
    for name, table in tables.items():
        write_table(snakemake.output[name], overlaps.add_to(table))
