from pathlib import Path

from crsbench.core.errors import user_error_boundary
from crsbench.synthetic import write_phantoms

with user_error_boundary(snakemake.log[0]):
    write_phantoms(Path(snakemake.output[0]).parent, **snakemake.params.spec)
