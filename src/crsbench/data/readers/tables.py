"""What every reader shares: tables of text, the frame that all return, and their checks."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
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
from crsbench.data.readers.identities import (
    INVISIBLE,
    NUMBER,
    check_spelling,
    folded,
    known_groups,
    quoted,
    says_missing,
)

RESERVED = ("image_id", "path", "group", "labels", "content_sha256", "dropped")
"""Manifest columns that are no subgroup."""

MAX_TABLE_BYTES = 2_000_000_000
"""How large a gzipped table may be when it is unpacked; the largest publisher's has 0.1 GB."""

UNKNOWN_GROUP = "image:"
"""How the group of an image begins whose patient or lesion is unknown; it goes on with its id."""

AROUND = re.compile(rf"^[\s{INVISIBLE}]+|[\s{INVISIBLE}]+$")
"""The space about a cell, of every width."""

WHOLE = re.compile(r"^([-+]?\d+)\.0*$")
"""A whole number that is written with a point."""

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
    naming `file`, on ids that are absent or not unique, on ids and groups that differ in spelling
    only, on groups that stand for "not known" and on paths that leave the root, unless the entry
    allows that.
    """
    for names in (ids, paths, *([] if groups is None else [groups])):
        broken = names[names.str.contains(r"[\r\n]")]
        if len(broken):
            raise UserError(
                f"{file}: column '{names.name}' has the value {quoted(broken.iloc[0])}, with a "
                "line break; allowed there are names on one line."
            )
    _check_ids(ids, file)
    check_spelling(entry, ids, "image ids", file)
    _check_paths(paths, file, may_leave(entry))
    frame = pd.DataFrame({"image_id": ids, "path": paths})
    frame["group"] = UNKNOWN_GROUP + ids
    if groups is not None:
        check_spelling(entry, groups, "group names", file)
        groups = known_groups(entry, groups, file)
        frame["group"] = frame["group"].where(groups == "", "group:" + groups)
    frame["labels"] = list(truth)
    return frame


def select_rows(table: pd.DataFrame, entry: DatasetEntry, file: Path) -> pd.DataFrame:
    """The rows whose columns have the values of the entry's `where` (one value, or a list).

    True, true, 1 and 1.0 are one value. Raises UserError naming what a column has instead where
    none of its values is wanted.
    """
    for name, wanted in entry.spec.get("where", {}).items():
        values = column(table, name, file)
        allowed = {_plain(_stripped(text(value))) for value in _listed(wanted)}
        selected = table[values.map(_plain).isin(allowed)]
        if selected.empty:
            counts = values.value_counts()
            found = ", ".join(f"{quoted(str(v))} ({n})" for v, n in counts.head(10).items())
            raise UserError(
                f"{file}: no row is left for data set '{entry.name}', since its `where` asks "
                f"'{name}' for {' or '.join(map(str, _listed(wanted)))}; in the rows that are left "
                f"the column has: {found or 'nothing'}{', …' if len(counts) > 10 else ''}."
            )
        _check_where(entry, name, values, allowed, file)
        table = selected
    if table.empty:
        raise UserError(f"{file}: no row is left for data set '{entry.name}'.")
    return table


def _check_where(
    entry: DatasetEntry, name: str, values: pd.Series, allowed: set[str], file: Path
) -> None:
    """Refuse values of a column that only their spelling keeps from being selected."""
    left = sorted(value for value in set(values) - {""} if _plain(value) not in allowed)
    wanted = {folded(value): value for value in allowed}
    alike = [value for value in left if folded(value) in wanted]
    if alike and entry.spec.get("similar_names", "stop") == "stop":
        raise UserError(
            f"{file}: column '{name}' has the value {quoted(alike[0])} too, which differs from "
            f"{quoted(wanted[folded(alike[0])])} in `where` of data set '{entry.name}' only in "
            "spelling; write one value in one way, list both in `where`, or set similar_names: "
            "keep in its entry."
        )


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _plain(cell: str) -> str:
    """A cell as `where` and columns of 0 and 1 compare it."""
    truth = {"true": "1", "false": "0"}.get(cell.casefold())
    return truth or WHOLE.sub(r"\1", cell)


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


def read_found(root: Path, *names: str) -> tuple[Path, pd.DataFrame]:
    """The first of these files below the root and its rows; UserError as of the two steps."""
    file = find_table(root, *names)
    return file, read_text_table(file)


def check_root(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"The image root {root} is not a folder; check data_root and root.")


def read_text_table(file: Path) -> pd.DataFrame:
    """A CSV (plain or gzipped) or Parquet table with every cell as text, missing ones empty.

    Cells and the names of columns lose the space around them. In a column of numbers a whole one
    loses its point (`12.0` is `12`). Lines without any value are no rows. Raises UserError naming
    the file and the line of a CSV that is not strict: a column name twice, a row with more or fewer
    cells than the header, the header once more, a quotation mark that is left open or swallows
    rows, another encoding than UTF-8, another kind of file.
    """
    try:
        if file.suffix == ".parquet":
            table = pd.read_parquet(file).map(text).rename(columns=str)
        else:
            table = _read_csv(_content(file))
    except (OSError, ValueError, EOFError, zlib.error, csv.Error, pa.ArrowInvalid) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split()).rstrip(".")
        raise UserError(f"{file} cannot be read as a table: {reason}.") from error
    return table.apply(_tidied) if len(table) else table


def _content(file: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped; ValueError when that is too much."""
    if file.suffix != ".gz":
        return file.read_bytes()
    with gzip.open(file) as packed:
        content = packed.read(MAX_TABLE_BYTES + 1)
    if len(content) > MAX_TABLE_BYTES:
        raise ValueError(f"unpacked it has more than {MAX_TABLE_BYTES / 1e9:g} GB")
    return content


def _read_csv(content: bytes) -> pd.DataFrame:
    """The rows of a strict CSV; ValueError or csv.Error naming the line otherwise."""
    lines = io.StringIO(_decoded(content), newline=None)
    reader = csv.reader(lines, strict=True)
    header = [_stripped(cell) for cell in next(reader, [])]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ValueError(f"it has the column {quoted(twice[0])} more than once")
    if not any(header):
        raise ValueError("its first line is empty; allowed is a line of column names")
    if len(header) == 1 and (found := set(header[0]) & set(";\t|")):
        raise ValueError(f"its cells are separated by {sorted(found)[0]!r}; allowed is a comma")
    rows = []
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"the row that begins in line {line}: {error}") from error
        if row is None:
            break
        if not any(map(_stripped, row)):
            continue
        if len(row) != len(header):
            raise ValueError(
                f"the row that begins in line {line} has {len(row)} cells and the header "
                f"{len(header)}; look for a comma too many, or a quotation mark"
            )
        if [_stripped(cell) for cell in row] == header:
            raise ValueError(f"line {line} is the header once more, as of tables that were joined")
        for name, cell in zip(header, row, strict=True):
            breaks = cell.count("\n")
            # A cell that swallowed k whole rows holds k line breaks and k times a row's commas.
            if breaks and cell.count(",") == breaks * (len(header) - 1):
                raise ValueError(
                    f"the cell of column {quoted(name)} that begins in line {line} holds "
                    f"{breaks} further rows; look for a quotation mark that is left open"
                )
        rows.append(row)
    names = [name or f"Unnamed: {number}" for number, name in enumerate(header)]
    return pd.DataFrame(rows, columns=names, dtype=str)


OTHER_FILES = {
    b"PK\x03\x04": "an Excel workbook or another zip file; save its sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook; save its sheet as CSV",
    b"\x1f\x8b": "a gzipped file; its name must end in .gz",
    b"PAR1": "a Parquet file; its name must end in .parquet",
    b"%PDF": "a PDF",
    b"\xff\xfe\0\0": "UTF-32 text; save it as UTF-8",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself",
    b"<": "HTML or XML, such as a page that asks to log in; download the table itself",
}
"""What files with these first bytes are instead of a CSV."""


def _decoded(content: bytes) -> str:
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise ValueError("it is empty; allowed is a line of column names and one for each image")
    for first, kind in OTHER_FILES.items():
        if start.startswith(first):
            raise ValueError(f"it is {kind}")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise ValueError(f"line {line} has a NUL byte; it is damaged, or not saved as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line} is not UTF-8; save the file as UTF-8") from error


def _tidied(cells: pd.Series) -> pd.Series:
    """A column without the space around its cells; whole numbers of a numeric one as such."""
    tidy = {cell: _stripped(cell) for cell in cells.unique()}
    stated = {value for value in tidy.values() if value and not says_missing(value)}
    if stated and all(map(NUMBER.fullmatch, stated)):
        tidy = {cell: WHOLE.sub(r"\1", value) for cell, value in tidy.items()}
    return cells.map(tidy).astype(cells.dtype)


def _stripped(cell: str) -> str:
    return AROUND.sub("", cell)


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
    """A column by its name; raises UserError as `require_columns` does."""
    require_columns(table, [name], file)
    return table[name.strip()]


def require_columns(table: pd.DataFrame, names: Iterable[str], file: Path) -> None:
    """Raise UserError naming each column that is absent, and those that there are.

    So it does for a column that is there twice, but for its spelling (`dx` and `DX`), or that a
    program numbered (`dx` and `dx.1`).
    """
    known = list(table.columns)
    lacking = [name for name in dict.fromkeys(names) if name.strip() not in known]
    if lacking:
        named = ", ".join(f"'{name}'{nearest(name, known)}" for name in lacking)
        raise UserError(f"{file} has no column {named}; it has: {', '.join(known)}.")
    for name in map(str.strip, names):
        for other in known:
            again = re.fullmatch(re.escape(name) + r"\.\d+", other)
            if other != name and (again or folded(other) == folded(name)):
                raise UserError(
                    f"{file} has the columns {quoted(name)} and {quoted(other)}, which are one but "
                    "for their spelling; keep one of them, or rename the other."
                )


def _check_ids(ids: pd.Series, file: Path) -> None:
    if (ids == "").any():
        raise UserError(f"{file}: {int((ids == '').sum())} rows have no image id ('{ids.name}').")
    require_unique(ids, file)


def columns_of(table: pd.DataFrame, names: Sequence[str], file: Path) -> pd.DataFrame:
    """Some columns by their names; raises UserError as `column` does."""
    require_columns(table, names, file)
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
    """(n,) int8 of a column of zeros and ones, or of False and True."""
    plain = labels.map(_plain)
    odd = sorted(set(plain) - {"0", "1"})
    if odd:
        raise UserError(
            f"{file}: label column '{labels.name}' has the value '{odd[0]}'; allowed: 0 and 1."
        )
    return (plain == "1").to_numpy(dtype=np.int8)


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
    wanted = {**index, **{_stripped(text(name)): index[k] for name, k in renamed.items()}}
    separator = entry.spec.get("separator", "|") if entry.task == "multilabel" else None
    truth = np.zeros((len(labels), len(entry.classes)), dtype=np.int8)
    for row, label in enumerate(labels):
        values = [label] if separator is None else map(_stripped, label.split(separator))
        for value in values:
            if value in wanted:
                truth[row, wanted[value]] = 1
            elif value not in others:
                known = [*wanted, *sorted(others)]
                raise UserError(
                    f"{file}: column '{labels.name}' has the value {quoted(value)} in row "
                    f"{row + 1} of data set '{entry.name}'{nearest(value, known)}; allowed: "
                    f"{', '.join(known)} (label_map in its entry says what another name means)."
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


def age_columns(ages: pd.Series, file: Path) -> dict[str, pd.Series]:
    """The subgroup columns of ages in years: as they are stated, and their bands."""
    return {"age": ages, "age_band": age_bands(ages, file)}


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
