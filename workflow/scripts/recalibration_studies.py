import pandas as pd

from crsbench.config.layout import RECALIBRATED_PARTS
from crsbench.config.overlap import Overlaps
from crsbench.core.errors import user_error_boundary
from crsbench.core.files import read_table, write_table
from crsbench.studies import RECALIBRATION_STUDIES, recalibration
from crsbench.studies.base import write_study

with user_error_boundary(snakemake.log[0]):
    params, outputs = snakemake.params, snakemake.output
    parts = {}
    for name in RECALIBRATED_PARTS:
        of_cells = [read_table(file)[0] for file in snakemake.input[name]]
        parts[name] = pd.concat(of_cells, ignore_index=True)
        parts[name]["primary"] = parts[name]["encoder"].isin(params.primary)
    entries = {**params.encoders, **params.datasets, **params.targets}
    titles = {name: spec["title"] for name, spec in entries.items()}
    cells = recalibration.Recalibrated(**parts, titles=titles, targets=tuple(params.targets))
    overlaps = Overlaps.of_panel(params)
    for name in ("recalibrated", "reliability"):
        write_table(outputs[name], overlaps.add_to(cells.published(name)))
    files = zip(RECALIBRATION_STUDIES, outputs.tables, outputs.figures, strict=True)
    for name, table, figure in files:
        write_study(table, figure, name, getattr(recalibration, name)(cells), overlaps)
