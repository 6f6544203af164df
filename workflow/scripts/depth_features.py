from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.readers import image_root
from crsbench.features.depths import extract_depths

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    extract_depths(
        config,
        config.encoders[snakemake.wildcards.encoder],
        image_root=image_root(config, Layout(config.results), snakemake.wildcards.dataset),
        manifest_file=snakemake.input.manifest,
        outputs=dict(zip(snakemake.params.depths, snakemake.output, strict=True)),
        workers=snakemake.threads - 1,
    )
