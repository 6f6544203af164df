import pandas as pd

from crsbench.errors import told_in_one_sentence
from crsbench.files import read_table, write_table
from crsbench.grid import RECALIBRATED_PARTS
from crsbench.overlap import Overlaps
from crsbench.studies import RECALIBRATION_STUDIES, recalibration
from crsbench.studies.base import write_study

with told_in_one_sentence(snakemake.log[0]):
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
