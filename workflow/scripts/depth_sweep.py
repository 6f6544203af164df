import pandas as pd

from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table
from crsbench.studies.base import write_study
from crsbench.studies.depth_sweep import depth_sweep

with user_error_boundary(snakemake.log[0]):
    runs = pd.concat([read_table(file)[0] for file in snakemake.input], ignore_index=True)
    files, params = snakemake.output, snakemake.params
    study = depth_sweep(runs, params.encoders, params.datasets)
    write_study(files.table, files.figure, "depth_sweep", study, Overlaps.of_panel(params))
