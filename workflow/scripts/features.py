from pathlib import Path

from crsbench.config import load_config
from crsbench.errors import told_in_one_sentence
from crsbench.features.jobs import extract_features
from crsbench.grid import Layout
from crsbench.sources import image_root

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    dataset = snakemake.wildcards.get("target", snakemake.wildcards.dataset)
    extract_features(
        config,
        config.encoders[snakemake.wildcards.encoder],
        image_root=image_root(config, Layout(config.results), dataset),
        manifest_file=snakemake.input.manifest,
        test_file=snakemake.input.get("test"),
        outputs=snakemake.output,
        workers=snakemake.threads - 1,
    )
