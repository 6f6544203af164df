from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table, write_table
from crsbench.score import axes_table, crs_table, load_scoring, runs_to_rows

with told_in_one_sentence(snakemake.log[0]):
    runs, _ = read_table(snakemake.input.runs)
    scoring = load_scoring(snakemake.input.scoring)
    axes = axes_table(runs, scoring, snakemake.params.shift)
    write_table(snakemake.output.rows, runs_to_rows(runs))
    write_table(snakemake.output.axes, axes)
    write_table(snakemake.output.crs, crs_table(axes, scoring, floors=snakemake.params.floors))
