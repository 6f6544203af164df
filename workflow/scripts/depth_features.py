from pathlib import Path

from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.features.depths import extract_depths
from crsbench.grid import Layout
from crsbench.sources import image_root

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    extract_depths(
        config,
        config.encoders[snakemake.wildcards.encoder],
        image_root=image_root(config, Layout(config.results), snakemake.wildcards.dataset),
        manifest_file=snakemake.input.manifest,
        outputs=dict(zip(snakemake.params.depths, snakemake.output, strict=True)),
        workers=snakemake.threads - 1,
    )
