from pathlib import Path

from crsbench.calibration.external_predictions import recalibrate_external
from crsbench.core.errors import user_error_boundary
from crsbench.core.threads import use_one_thread

with user_error_boundary(snakemake.log[0]):
    use_one_thread()
    recalibrate_external(snakemake.input[0], Path(snakemake.output.table).parent)
