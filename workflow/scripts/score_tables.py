from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table, write_table
from crsbench.overlap import Overlaps
from crsbench.score import load_reference, load_scoring
from crsbench.tables import score_tables

with told_in_one_sentence(snakemake.log[0]):
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
