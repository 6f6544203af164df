"""What every reader shares: tables of text, the frame that all return, and their checks."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.core.names import nearest

RESERVED = ("image_id", "path", "group", "labels", "content_sha256", "dropped")
"""Manifest columns that are no subgroup."""

MAX_TABLE_BYTES = 2_000_000_000
"""How large a gzipped table may be when it is unpacked; the largest publisher's has 0.1 GB."""

UNKNOWN_GROUP = "image:"
"""How the group of an image begins whose patient or lesion is unknown; it goes on with its id."""

AGE_BANDS = {0: "0-17", 18: "18-39", 40: "40-59", 60: "60-79", 80: "80+"}
"""The usual age bands of subgroup analyses, by their first year."""


@dataclass(frozen=True)
class ImageTable:
    """The images of a data set as its publisher describes them.

    frame: a row an image with image_id, path (relative to the data set's root), group (str), labels
    (K int8 in the order of the entry's classes), publisher_split and further subgroup columns (str,
    empty where the publisher says nothing). left_out: how many rows of the publisher's tables are
    no image of the benchmark, by reason. demographics: how the patients and a file of theirs went
    together, empty without one.
    """

    frame: pd.DataFrame
    left_out: Mapping[str, int] = field(default_factory=dict)
    demographics: Mapping[str, Any] = field(default_factory=dict)


def build_image_table(
    entry: DatasetEntry,
    file: Path,
    *,
    ids: pd.Series,
    paths: pd.Series,
    groups: pd.Series | None,
    truth: np.ndarray,
    subgroups: Mapping[str, pd.Series | str],
    left_out: Mapping[str, int] | None = None,
    demographics: Mapping[str, Any] | None = None,
) -> ImageTable:
    """Join what a publisher's reader found; an entry's `where` selects on the subgroup columns.

    Raises UserError as `image_frame` does, on a `where` column that isn't there, and when no row is
    left.
    """
    frame = image_frame(entry, file, ids, paths, groups, truth)
    for name, values in subgroups.items():
        frame[name] = values
    selected = select_rows(frame, entry, file)
    counts = {**(left_out or {}), "not selected by `where`": len(frame) - len(selected)}
    counts = {reason: n for reason, n in counts.items() if n}
    return ImageTable(selected.reset_index(drop=True), counts, demographics or {})


def image_frame(
    entry: DatasetEntry,
    file: Path,
    ids: pd.Series,
    paths: pd.Series,
    groups: pd.Series | None,
    truth: np.ndarray,
) -> pd.DataFrame:
    """The columns image_id, path, group and labels of (n,) columns and an (n, K) truth.

    groups: names, empty where unknown: such an image is a group of its own. Raises UserError,
    naming `file`, on ids that are absent or not unique and on paths that leave the root, unless
    the entry allows that.
    """
    _check_ids(ids, file)
    _check_paths(paths, file, may_leave(entry))
    frame = pd.DataFrame({"image_id": ids, "path": paths})
    frame["group"] = UNKNOWN_GROUP + ids
    if groups is not None:
        frame["group"] = frame["group"].where(groups == "", "group:" + groups)
    frame["labels"] = list(truth)
    return frame


def select_rows(table: pd.DataFrame, entry: DatasetEntry, file: Path) -> pd.DataFrame:
    """The rows whose columns have the values of the entry's `where` (one value, or a list)."""
    for name, wanted in entry.spec.get("where", {}).items():
        allowed = [text(value) for value in (wanted if isinstance(wanted, list) else [wanted])]
        table = table[column(table, name, file).isin(allowed)]
    if table.empty:
        raise UserError(f"{file}: no row is left for data set '{entry.name}'.")
    return table


def find_table(root: Path, *names: str) -> Path:
    """The first of these files below the root; each may be gzipped, with `.gz` added to its name.

    Raises UserError naming the root or the files that were looked for.
    """
    check_root(root)
    candidates = [root / (name + suffix) for name in names for suffix in ("", ".gz")]
    for file in candidates:
        if file.is_file():
            return file
    wanted = " or ".join(f"'{name}'" for name in names)
    raise UserError(f"{root} holds no {wanted} (or the same with .gz); check data_root and root.")


def check_root(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"The image root {root} is not a folder; check data_root and root.")


def read_text_table(file: Path) -> pd.DataFrame:
    """A CSV (plain or gzipped) or Parquet table with every cell as text, missing ones empty."""
    try:
        if file.suffix == ".parquet":
            return pd.read_parquet(file).map(text)
        return pd.read_csv(_unpacked(file), dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError, EOFError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as a table: {reason}.") from error


def _unpacked(file: Path) -> Path | io.BytesIO:
    """The file, or its content if it is gzipped; ValueError when that is no table of this world."""
    if file.suffix != ".gz":
        return file
    with gzip.open(file) as packed:
        content = packed.read(MAX_TABLE_BYTES + 1)
    if len(content) > MAX_TABLE_BYTES:
        raise ValueError(f"unpacked it has more than {MAX_TABLE_BYTES / 1e9:g} GB")
    return io.BytesIO(content)


def text(value: Any) -> str:
    """A cell as text: whole floats without their point, truth values as 0 and 1."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def column(table: pd.DataFrame, name: str, file: Path) -> pd.Series:
    """A column by its name; raises UserError that names the file and the columns it has."""
    if name not in table.columns:
        raise UserError(
            f"{file} has no column '{name}'{nearest(name, list(table.columns))}; "
            f"it has: {', '.join(map(str, table.columns))}."
        )
    return table[name]


def _check_ids(ids: pd.Series, file: Path) -> None:
    if (ids == "").any():
        raise UserError(f"{file}: {int((ids == '').sum())} rows have no image id ('{ids.name}').")
    require_unique(ids, file)


def columns_of(table: pd.DataFrame, names: Sequence[str], file: Path) -> pd.DataFrame:
    """Some columns by their names; raises UserError as `column` does."""
    return pd.DataFrame({name: column(table, name, file) for name in names})


def require_unique(ids: pd.Series, file: Path) -> None:
    """Raise UserError naming the column and the first id that occurs more than once."""
    twice = ids[ids.duplicated()]
    if len(twice):
        raise UserError(
            f"{file}: ids must be unique, '{twice.iloc[0]}' occurs more than once "
            f"({twice.nunique()} such ids in column '{ids.name}')."
        )


def may_leave(entry: DatasetEntry) -> bool:
    """Whether the images of a data set may lie outside its folder."""
    return entry.spec.get("paths_may_leave_root", False)


def _check_paths(paths: Iterable[str], file: Path, may_leave_root: bool) -> None:
    for path in paths:
        parts = PurePosixPath(path)
        leaves = parts.is_absolute() or ".." in parts.parts
        if not path or "\0" in path or (leaves and not may_leave_root):
            raise UserError(
                f"{file}: image path '{path}' must be relative to the data set's folder and stay "
                "below it (or set paths_may_leave_root: true in its entry)."
            )


def check_links(entry: DatasetEntry, root: Path, paths: Iterable[str]) -> None:
    """Raise UserError naming the first image that a symbolic link takes out of the root.

    The root itself may be a link, and an entry may allow what leaves it.
    """
    if may_leave(entry):
        return
    real_root = os.path.realpath(root)
    within: dict[str, bool] = {}
    for path in paths:
        file = os.path.join(root, path)
        place = file if os.path.islink(file) else os.path.dirname(file)
        if place not in within:
            real = os.path.realpath(place)
            within[place] = os.path.commonpath([real, real_root]) == real_root
        if not within[place]:
            raise UserError(
                f"Data set '{entry.name}': the image '{path}' is linked to "
                f"{os.path.realpath(file)}, outside {root}; set paths_may_leave_root: true in its "
                "entry to allow that."
            )


def binary(labels: pd.Series, file: Path) -> np.ndarray:
    """(n,) int8 of a column of zeros and ones."""
    odd = sorted(set(labels) - {"0", "1", "0.0", "1.0"})
    if odd:
        raise UserError(
            f"{file}: label column '{labels.name}' has the value '{odd[0]}'; allowed: 0 and 1."
        )
    return labels.isin(["1", "1.0"]).to_numpy(dtype=np.int8)


def named_labels(
    entry: DatasetEntry, labels: pd.Series, file: Path, *, others: Sequence[str] = ()
) -> np.ndarray:
    """(n, K) int8 of a column that names its labels, one-hot or multi-hot.

    A multilabel cell holds names joined by the entry's `separator` (`|` for a publisher's reader).
    The entry's `label_map` turns a publisher's name into a class; `others` are known names that are
    no class of the entry. Raises UserError naming the column, the value and its row otherwise.
    """
    renamed = entry.spec.get("label_map", {})
    index = {name: k for k, name in enumerate(entry.classes)}
    wanted = {**index, **{name: index[label] for name, label in renamed.items()}}
    separator = entry.spec.get("separator", "|") if entry.task == "multilabel" else None
    truth = np.zeros((len(labels), len(entry.classes)), dtype=np.int8)
    for row, label in enumerate(labels):
        for value in [label] if separator is None else label.split(separator):
            if value in wanted:
                truth[row, wanted[value]] = 1
            elif value not in others:
                raise UserError(
                    f"{file}: column '{labels.name}' has the value '{value}' in row {row + 1} of "
                    f"data set '{entry.name}'; allowed: {', '.join([*wanted, *sorted(others)])}."
                )
    return truth


def recoded(values: pd.Series, codes: Mapping[str, str], file: Path) -> pd.Series:
    """A subgroup column in the benchmark's own words; an empty cell stays empty."""
    odd = sorted(set(values) - {*codes, ""})
    if odd:
        raise UserError(
            f"{file}: column '{values.name}' has the value '{odd[0]}'; "
            f"allowed: {', '.join(codes)} and an empty cell."
        )
    return values.map({**codes, "": ""})


def age_bands(ages: pd.Series, file: Path) -> pd.Series:
    """The age band of each age in years; an empty cell stays empty."""
    bands = {"": ""}
    for age in set(ages) - {""}:
        if not re.fullmatch(r"\d+(\.\d+)?", age):
            raise UserError(
                f"{file}: column '{ages.name}' has the value '{age}'; allowed: years and an empty "
                "cell."
            )
        bands[age] = [band for low, band in AGE_BANDS.items() if low <= float(age)][-1]
    return ages.map(bands)


def find_images(root: Path, *patterns: str) -> dict[str, str]:
    """The files below the root that match the glob patterns: name -> path relative to the root.

    Raises UserError when nothing matches or a name occurs twice.
    """
    check_root(root)
    found: dict[str, str] = {}
    for file in sorted(file for pattern in patterns for file in root.glob(pattern)):
        path = file.relative_to(root).as_posix()
        if found.setdefault(file.name, path) != path:
            raise UserError(
                f"{root}: the image {file.name} lies in two places, '{found[file.name]}' and "
                f"'{path}'; keep one."
            )
    if not found:
        raise UserError(f"{root} holds no image of the form {' or '.join(map(repr, patterns))}.")
    return found
