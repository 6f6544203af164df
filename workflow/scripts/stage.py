from pathlib import Path

from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.weights.files import stage_all

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    stage_all(config)
