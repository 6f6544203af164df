from crsbench.errors import told_in_one_sentence
from crsbench.files import write_table
from crsbench.runs import collect_confidence_bins, collect_runs

with told_in_one_sentence(snakemake.log[0]):
    write_table(snakemake.output.runs, collect_runs(snakemake.input.runs))
    write_table(snakemake.output.confidence_bins, collect_confidence_bins(snakemake.input.runs))
