"""Messidor-2 with the adjudicated grades of Krause et al. (2018): fundus photographs, 0 to 4."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.tables import (
    ImageTable,
    build_image_table,
    column,
    find_images,
    named_labels,
    read_found,
    recoded,
)

TABLES = ("messidor_data.csv",)


def read_messidor2(entry: DatasetEntry, root: Path) -> ImageTable:
    """The gradable images of messidor_data.csv; every image is its own group.

    root: the folder with the table and `IMAGES/`. The layout is known from public loaders only: the
    table writes `.jpg` where files end in `.JPG`, so names are compared without regard to case, and
    an ungradable image has no grade: it is left out and counted. The tables used here don't pair
    the eyes of a patient; that matters to a set that is trained on, not to a shift target.
    """
    file, table = read_found(root, *TABLES)
    gradable = recoded(
        column(table, "adjudicated_gradable", file),
        {"1": "1", "0": "", "1.0": "1", "0.0": ""},
        file,
    )
    images = table[gradable == "1"]
    names = column(images, "image_id", file)
    found = {name.lower(): path for name, path in find_images(root, "IMAGES/*.*").items()}
    grades = column(images, "adjudicated_dr_grade", file).str.removesuffix(".0")
    return build_image_table(
        entry,
        file,
        ids=names.str.replace(r"\.\w+$", "", regex=True),
        paths=names.str.lower().map(found).fillna("IMAGES/" + names),
        groups=None,
        truth=named_labels(entry, grades, file),
        subgroups={
            "publisher_split": "",
            "macular_oedema": column(images, "adjudicated_dme", file).str.removesuffix(".0"),
        },
        left_out={"ungradable": len(table) - len(images)},
    )
