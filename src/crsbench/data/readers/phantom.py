"""The synthetic phantoms: the table that their generator wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.table import read_table_dataset
from crsbench.data.readers.tables import ImageTable
from crsbench.synthetic import KINDS, check_phantoms


def read_phantom(entry: DatasetEntry, root: Path) -> ImageTable:
    """Read a phantom set by the `table` reader, once its files are known to be whole."""
    check_phantoms(root)
    subgroups = list(KINDS[entry.spec["phantom"]["kind"]].subgroups)
    columns = {"id": "image_id", "path": "path", "label": "label", "group": "group"}
    spec = {**entry.spec, "table": "table.csv", "columns": {**columns, "subgroups": subgroups}}
    if entry.task == "multilabel":
        spec["separator"] = "|"
    return read_table_dataset(replace(entry, spec=spec), root)
