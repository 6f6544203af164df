from pathlib import Path

from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.weight_files import stage_all

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    stage_all(config)
