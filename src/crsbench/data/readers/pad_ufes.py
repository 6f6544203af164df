"""PAD-UFES-20 (Pacheco et al., 2020): smartphone photographs of skin lesions."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.model import DatasetEntry
from crsbench.data.readers.tables import (
    ImageTable,
    age_columns,
    build_image_table,
    column,
    find_images,
    named_labels,
    read_found,
    recoded,
)

TABLES = ("metadata.csv",)


def read_pad_ufes(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of metadata.csv, grouped by patient.

    root: the folder with the table and `images/`, whose three parts may lie one folder deeper
    (`images/imgs_part_1/…`) or two, as their archives are unpacked. The entry's `label_map` turns
    the publisher's six diagnoses into its classes (its SCC holds Bowen's disease). The layout is
    known from public code, not from the publisher's own archive.
    """
    file, table = read_found(root, *TABLES)
    names = column(table, "img_id", file)
    found = find_images(root, "images/*.png", "images/*/*.png", "images/*/*/*.png")
    sex = column(table, "gender", file)
    return build_image_table(
        entry,
        file,
        ids=names.str.removesuffix(".png"),
        paths=names.map(found).fillna("images/" + names),
        groups=column(table, "patient_id", file),
        truth=named_labels(entry, column(table, "diagnostic", file), file),
        subgroups={
            "publisher_split": "",
            "sex": recoded(sex, {"FEMALE": "female", "MALE": "male"}, file),
            **age_columns(column(table, "age", file), file),
            "skin_type": column(table, "fitspatrick", file).str.removesuffix(".0"),
            "anatomical_site": column(table, "region", file).str.lower(),
        },
    )
