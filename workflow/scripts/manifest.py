from pathlib import Path

from crsbench.config import load_config
from crsbench.data.manifest import write_manifest
from crsbench.errors import told_in_one_sentence
from crsbench.grid import Layout
from crsbench.sources import image_root

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    dataset = snakemake.wildcards.dataset
    write_manifest(
        snakemake.output.manifest,
        snakemake.output.images,
        config.dataset(dataset),
        image_root(config, Layout(config.results), dataset),
        max_pixels=snakemake.params.max_pixels,
        workers=snakemake.threads,
    )
