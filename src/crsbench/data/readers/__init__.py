"""Readers: one for each publisher's layout, all returning the same table of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.phantom import read_phantom
from crsbench.data.readers.table import read_table_dataset
from crsbench.data.readers.tables import RESERVED, UNKNOWN_GROUP, ImageTable, check_links
from crsbench.synthetic import KINDS

__all__ = [
    "READERS",
    "RESERVED",
    "UNKNOWN_GROUP",
    "ImageTable",
    "Reader",
    "read_images",
    "source_tables",
    "stated_subgroups",
]


@dataclass(frozen=True)
class Reader:
    """How a publisher's files become a table of images.

    read: takes the registry entry and the data set's root folder; tables: the files below the root
    that it may read (each may be gzipped), on which the manifest depends.
    """

    read: Callable[[DatasetEntry, Path], ImageTable]
    tables: Callable[[DatasetEntry], Sequence[str]]


def _publisher(name: str) -> Reader:
    """The reader of the module of this name: its function `read_<name>`, and its TABLES."""
    module = import_module(f"{__name__}.{name}")
    return Reader(getattr(module, f"read_{name}"), lambda _entry: module.TABLES)


PUBLISHERS = (
    *("chexpert", "isic2019", "aptos2019", "mimic", "nih", "padchest", "vindr_cxr", "pad_ufes"),
    *("idrid", "messidor2", "eyepacs"),
)
READERS: Mapping[str, Reader] = {
    "table": Reader(read_table_dataset, lambda entry: [entry.spec["table"]]),
    "phantom": Reader(read_phantom, lambda _entry: ["table.csv"]),
    **{name: _publisher(name) for name in PUBLISHERS},
}


def read_images(entry: DatasetEntry, root: Path) -> ImageTable:
    """Read a data set below its root folder by the reader that its registry entry names.

    Raises UserError for an entry that names no reader, on anything that is absent, ambiguous or of
    another form than the publisher's, and on images outside the root.
    """
    if "reader" not in entry.spec:
        raise UserError(
            f"The data set '{entry.name}' can be planned but not run: its registry entry names no "
            f"reader (allowed: {', '.join(READERS)})."
        )
    table = READERS[entry.spec["reader"]].read(entry, root)
    check_links(entry, root, table.frame["path"])
    return table


def stated_subgroups(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The subgroup columns that a registry entry itself states: a table's, or a phantom's.

    Those of the publishers' layouts are known from their manifests.
    """
    if spec.get("reader") == "phantom":
        return KINDS[spec["phantom"]["kind"]].subgroups
    return tuple(spec.get("columns", {}).get("subgroups", ()))


def source_tables(entry: DatasetEntry, root: Path) -> list[Path]:
    """The tables below the root that exist and that the reader would read."""
    names = [*READERS[entry.spec["reader"]].tables(entry)]
    names += [entry.spec["demographics"]] if "demographics" in entry.spec else []
    files = [root / (name + suffix) for name in names for suffix in ("", ".gz")]
    return [file for file in files if file.is_file()]
