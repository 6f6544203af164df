"""APTOS 2019 blindness detection (training part): fundus photographs, grades 0 to 4."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.tables import (
    ImageTable,
    build_image_table,
    column,
    named_labels,
    read_found,
)

TABLES = ("train.csv",)


def read_aptos2019(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of train.csv; their files are `train_images/{id_code}.png` below the root.

    The publisher gives no patient, eye, age, sex or camera: every image is its own group, until
    exact duplicates are joined.
    """
    file, table = read_found(root, *TABLES)
    ids = column(table, "id_code", file)
    return build_image_table(
        entry,
        file,
        ids=ids,
        paths="train_images/" + ids + ".png",
        groups=None,
        truth=named_labels(entry, column(table, "diagnosis", file), file),
        subgroups={"publisher_split": "train"},
    )
