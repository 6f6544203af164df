from crsbench.core.errors import user_error_boundary
from crsbench.weights.files import stage_all

with user_error_boundary(snakemake.log[0]):
    stage_all(snakemake.params.config)
