from crsbench.errors import told_in_one_sentence
from crsbench.files import write_table
from crsbench.runs import collect_runs

with told_in_one_sentence(snakemake.log[0]):
    write_table(snakemake.output[0], collect_runs(snakemake.input))
