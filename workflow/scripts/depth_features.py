from crsbench.core.errors import user_error_boundary
from crsbench.features.depths import extract_depths

with user_error_boundary(snakemake.log[0]):
    extract_depths(
        snakemake.params.settings,
        without_norm=snakemake.params.without_norm,
        manifest_file=snakemake.input.manifest,
        outputs=dict(zip(snakemake.params.depths, snakemake.output, strict=True)),
        workers=snakemake.threads - 1,
    )
