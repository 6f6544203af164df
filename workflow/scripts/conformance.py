from crsbench.core.errors import UserError, user_error_boundary
from crsbench.operations.conformance import conformance
from crsbench.operations.doctor import formatted, missing

with user_error_boundary(snakemake.log[0]):
    report = conformance(snakemake.params.config)
    print(f"\n{formatted(report)}\n", flush=True)
    failed = ", ".join(missing(report))
    if failed:
        raise UserError(f"What is red above does not conform: {failed}.")
