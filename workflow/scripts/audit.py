from pathlib import Path

from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.data.audit import write_audit

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    write_audit(
        snakemake.output[0],
        config.dataset(snakemake.wildcards.dataset),
        snakemake.input.manifest,
        snakemake.input.images,
        dict(zip(snakemake.params.seeds, snakemake.input.splits, strict=True)),
        dict(zip(snakemake.params.targets, snakemake.input.targets, strict=True)),
    )
