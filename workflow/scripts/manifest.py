from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.manifest import write_manifest
from crsbench.data.readers import image_root

with user_error_boundary(snakemake.log[0]):
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
