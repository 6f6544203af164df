from crsbench.config.model import DatasetEntry
from crsbench.core.errors import user_error_boundary
from crsbench.data.audit import write_audit

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    write_audit(
        snakemake.output[0],
        DatasetEntry.of(snakemake.wildcards.dataset, params.spec),
        files.manifest,
        files.images,
        dict(zip(params.seeds, files.splits, strict=True)),
        dict(zip(params.targets, files.targets, strict=True)),
    )
