from pathlib import Path

from crsbench.config.load import load_config
from crsbench.core.errors import UserError, user_error_boundary
from crsbench.operations.conformance import conformance
from crsbench.operations.doctor import formatted, missing

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    report = conformance(config)
    print(f"\n{formatted(report)}\n", flush=True)
    failed = ", ".join(missing(report))
    if failed:
        raise UserError(f"What is red above does not conform: {failed}.")
