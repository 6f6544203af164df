from pathlib import Path

from crsbench.errors import told_in_one_sentence
from crsbench.own_model import recalibrate_own_model
from crsbench.threads import use_one_thread

with told_in_one_sentence(snakemake.log[0]):
    use_one_thread()
    recalibrate_own_model(snakemake.input[0], Path(snakemake.output.table).parent)
