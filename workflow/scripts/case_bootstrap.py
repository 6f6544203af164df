from pathlib import Path

import pandas as pd

from crsbench.config.grid import Grid
from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import write_table
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.predictions import read_test_set
from crsbench.studies.case_bootstrap import case_bootstrap

with user_error_boundary(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    grid, layout = Grid(config), Layout(config.results)
    parts = []
    for dataset, entry in config.datasets.items():
        files = {
            cell.encoder: [layout.predictions_file(cell, seed) for seed in config.seeds]
            for cell in grid.cells
            if cell.dataset == dataset
        }
        for condition in (CLEAN, *entry.shift) if files else ():
            tested = dataset if condition == CLEAN else condition
            manifest = read_manifest(layout.at(layout.manifest, dataset=tested))
            test_set = read_test_set(manifest, condition, files)
            parts.append(case_bootstrap(test_set, dataset, condition, snakemake.params.replicates))
    for name, tables in zip(("cases", "pairs"), zip(*parts, strict=True), strict=True):
        write_table(snakemake.output[name], pd.concat(tables, ignore_index=True))
