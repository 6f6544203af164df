from crsbench.config.model import DatasetEntry
from crsbench.core.errors import user_error_boundary
from crsbench.data.audit import write_audit
from crsbench.data.audit_page import write_audit_page

with user_error_boundary(snakemake.log[0]):
    files, params = snakemake.input, snakemake.params
    write_audit(
        snakemake.output.audit,
        DatasetEntry.of(snakemake.wildcards.dataset, params.spec),
        files.manifest,
        files.images,
        dict(zip(params.seeds, files.splits, strict=True)),
        dict(zip(params.targets, files.targets, strict=True)),
        params.test_share,
    )
    write_audit_page(snakemake.output.page, snakemake.output.audit)
