"""The `table` reader: any CSV or Parquet table with ids, paths and labels is a data set."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.identities import check_spelling
from crsbench.data.readers.tables import (
    RESERVED,
    ImageTable,
    binary,
    check_root,
    column,
    image_frame,
    named_labels,
    read_text_table,
    require_columns,
    select_rows,
)


def read_table_dataset(entry: DatasetEntry, root: Path) -> ImageTable:
    """Read the table that the entry names, by the columns that it names.

    Paths are relative to the table's own folder; `where` selects on the table's columns. Raises
    UserError naming the file, column and value.
    """
    spec, columns = entry.spec, entry.spec["columns"]
    file = root / spec["table"]
    check_root(file.parent)
    whole = read_text_table(file)
    require_columns(whole, _used_columns(entry), file)
    if "group" in columns:  # data sets of other rows may be compared with this one by patient
        check_spelling(entry, column(whole, columns["group"], file), "group names", file)
    table = select_rows(whole, entry, file)
    ids, paths = column(table, columns["id"], file), column(table, columns["path"], file)
    folder = PurePosixPath(spec["table"]).parent
    frame = image_frame(
        entry,
        file,
        ids,
        paths.map(lambda path: str(folder / path) if path else path),
        column(table, columns["group"], file) if "group" in columns else None,
        _truth(entry, table, file),
    )
    for name in columns.get("subgroups", ()):
        if name in RESERVED:
            raise UserError(f"Data set '{entry.name}': '{name}' can't be a subgroup column.")
        frame[name] = column(table, name, file)
    left_out = len(whole) - len(table)
    return ImageTable(
        frame.reset_index(drop=True), {"not selected by `where`": left_out} if left_out else {}
    )


def _used_columns(entry: DatasetEntry) -> list[str]:
    columns = entry.spec["columns"]
    single = [columns[key] for key in ("id", "path", "label", "group") if key in columns]
    labels, subgroups = columns.get("labels", {}).values(), columns.get("subgroups", ())
    return [*single, *labels, *subgroups, *entry.spec.get("where", {})]


def _truth(entry: DatasetEntry, table: pd.DataFrame, file: Path) -> np.ndarray:
    columns = entry.spec["columns"]
    if "labels" in columns:
        labels = [column(table, columns["labels"][name], file) for name in entry.classes]
        return np.stack([binary(values, file) for values in labels], axis=1)
    label = column(table, columns["label"], file)
    return named_labels(entry, label, file, others=entry.spec.get("ignore", ()))
