from crsbench.core.errors import UserError, user_error_boundary
from crsbench.operations.doctor import examine, formatted, missing

with user_error_boundary(snakemake.log[0]):
    report = examine(snakemake.params.config)
    print(f"\n{formatted(report)}\n", flush=True)
    absent = ", ".join(missing(report))
    if absent:
        raise UserError(f"`all` can't end without what is red above: {absent}.")
