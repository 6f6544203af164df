from crsbench.core.errors import user_error_boundary
from crsbench.data.manifest import write_manifest

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.output, snakemake.params
    write_manifest(
        files.manifest,
        files.images,
        params.entry,
        params.root,
        max_pixels=params.image["max_pixels"],
        short_side=params.image["short_side"],
        workers=snakemake.threads,
    )
