"""Readers: one for each publisher's layout, all returning the same table of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers import (
    aptos2019,
    chexpert,
    eyepacs,
    idrid,
    isic2019,
    messidor2,
    mimic,
    nih,
    pad_ufes,
    padchest,
    vindr_cxr,
)
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


def _publisher(read: Callable[[DatasetEntry, Path], ImageTable], tables: Sequence[str]) -> Reader:
    return Reader(read, lambda _entry: tables)


READERS: Mapping[str, Reader] = {
    "table": Reader(read_table_dataset, lambda entry: [entry.spec["table"]]),
    "phantom": _publisher(read_phantom, ["table.csv"]),
    "chexpert": _publisher(chexpert.read_chexpert, chexpert.TABLES),
    "isic2019": _publisher(isic2019.read_isic2019, isic2019.TABLES),
    "aptos2019": _publisher(aptos2019.read_aptos2019, aptos2019.TABLES),
    "mimic": _publisher(mimic.read_mimic, mimic.TABLES),
    "nih": _publisher(nih.read_nih, nih.TABLES),
    "padchest": _publisher(padchest.read_padchest, padchest.TABLES),
    "vindr_cxr": _publisher(vindr_cxr.read_vindr_cxr, vindr_cxr.TABLES),
    "pad_ufes": _publisher(pad_ufes.read_pad_ufes, pad_ufes.TABLES),
    "idrid": _publisher(idrid.read_idrid, idrid.TABLES),
    "messidor2": _publisher(messidor2.read_messidor2, messidor2.TABLES),
    "eyepacs": _publisher(eyepacs.read_eyepacs, eyepacs.TABLES),
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
