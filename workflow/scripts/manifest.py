from pathlib import Path

from crsbench.config import load_config
from crsbench.data.manifest import write_manifest
from crsbench.errors import told_in_one_sentence
from crsbench.grid import Layout
from crsbench.sources import image_table

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    dataset = snakemake.wildcards.dataset
    table = image_table(config, Layout(config.results), dataset)
    write_manifest(snakemake.output[0], config.dataset(dataset), table)
