"""The `table` reader: any CSV or Parquet table with ids, paths and labels is a data set."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from crsbench.config import DatasetEntry, nearest
from crsbench.errors import UserError

RESERVED = ("image_id", "path", "group", "labels", "content_sha256")


def read_image_table(entry: DatasetEntry, file: Path) -> pd.DataFrame:
    """Read a table by its registry entry.

    Returns the columns image_id, path, group (str), labels (lists of K int8) and the subgroup
    columns (str, empty where the table is). Raises UserError naming the file, column and value.
    """
    spec, columns = entry.spec, entry.spec["columns"]
    table = _read_text_table(file)
    for column, value in spec.get("where", {}).items():
        table = table[_column(table, column, file) == _text(value)]
    if table.empty:
        raise UserError(f"{file}: no row is left for data set '{entry.name}'.")

    ids = _column(table, columns["id"], file)
    _check_ids(ids, file)
    paths = _column(table, columns["path"], file)
    _check_paths(paths, file)
    frame = pd.DataFrame({"image_id": ids, "path": paths})
    frame["group"] = "image:" + ids
    if "group" in columns:
        groups = _column(table, columns["group"], file)
        frame["group"] = frame["group"].where(groups == "", "group:" + groups)
    frame["labels"] = list(_truth(entry, table, file))
    for name in columns.get("subgroups", ()):
        if name in RESERVED:
            raise UserError(f"Data set '{entry.name}': '{name}' can't be a subgroup column.")
        frame[name] = _column(table, name, file)
    return frame


def _read_text_table(file: Path) -> pd.DataFrame:
    """The table with every cell as text; a missing cell is the empty text."""
    if not file.parent.is_dir():
        raise UserError(f"The image root {file.parent} is not a folder; check data_root and root.")
    try:
        if file.suffix == ".parquet":
            return pd.read_parquet(file).map(_text)
        return pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as a table: {reason}.") from error


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _column(table: pd.DataFrame, name: str, file: Path) -> pd.Series:
    if name not in table.columns:
        raise UserError(
            f"{file} has no column '{name}'{nearest(name, list(table.columns))}; "
            f"it has: {', '.join(map(str, table.columns))}."
        )
    return table[name]


def _check_ids(ids: pd.Series, file: Path) -> None:
    if (ids == "").any():
        raise UserError(f"{file}: {int((ids == '').sum())} rows have no image id ('{ids.name}').")
    twice = ids[ids.duplicated()]
    if len(twice):
        raise UserError(
            f"{file}: image ids must be unique, '{twice.iloc[0]}' occurs more than once "
            f"({twice.nunique()} such ids in column '{ids.name}')."
        )


def _check_paths(paths: pd.Series, file: Path) -> None:
    for path in paths:
        parts = PurePosixPath(path)
        if not path or parts.is_absolute() or ".." in parts.parts:
            raise UserError(
                f"{file}: image path '{path}' must be relative to {file.parent} and stay below it."
            )


def _truth(entry: DatasetEntry, table: pd.DataFrame, file: Path) -> np.ndarray:
    """(n, K) int8, one-hot or multi-hot in the order of the entry's classes."""
    columns, classes = entry.spec["columns"], entry.classes
    if "labels" in columns:
        binary = [_binary(_column(table, columns["labels"][name], file), file) for name in classes]
        return np.stack(binary, axis=1)
    labels = _column(table, columns["label"], file)
    separator = entry.spec.get("separator")
    index = {name: k for k, name in enumerate(classes)}
    ignored = set(entry.spec.get("ignore", ()))
    truth = np.zeros((len(table), len(classes)), dtype=np.int8)
    for row, label in enumerate(labels):
        for value in [label] if separator is None else label.split(separator):
            if value in index:
                truth[row, index[value]] = 1
            elif value not in ignored:
                raise UserError(
                    f"{file}: column '{labels.name}' has the value '{value}' in row {row + 1} of "
                    f"data set '{entry.name}'; allowed: {', '.join([*classes, *sorted(ignored)])}."
                )
    return truth


def _binary(labels: pd.Series, file: Path) -> np.ndarray:
    odd = sorted(set(labels) - {"0", "1", "0.0", "1.0"})
    if odd:
        raise UserError(
            f"{file}: label column '{labels.name}' has the value '{odd[0]}'; allowed: 0 and 1."
        )
    return labels.astype(float).to_numpy(dtype=np.int8)
