"""NIH ChestX-ray14 (Wang et al., 2017): frontal radiographs, findings joined by a bar."""

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

TABLES = ("Data_Entry_2017_v2020.csv", "Data_Entry_2017.csv")
FINDINGS = (
    *("No Finding", "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule"),
    *("Pneumonia", "Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis"),
    *("Pleural_Thickening", "Hernia"),
)


def read_nih(entry: DatasetEntry, root: Path) -> ImageTable:
    """The images of the data entry table, grouped by patient.

    root: the folder with the table and the images, in `images/` (all archives unpacked in one
    place) or `images_001/images/` … `images_012/images/`. The entry's `label_map` turns findings
    into its classes; findings of the publisher that are no class are passed over. Ages are as the
    table has them: its first edition holds some above 400 years.
    """
    file, table = read_found(root, *TABLES)
    names = column(table, "Image Index", file)
    found = find_images(root, "images/*.png", "images_*/images/*.png")
    sex = column(table, "Patient Gender", file)
    return build_image_table(
        entry,
        file,
        ids=names.str.removesuffix(".png"),
        paths=names.map(found).fillna("images/" + names),
        groups=column(table, "Patient ID", file),
        truth=named_labels(entry, column(table, "Finding Labels", file), file, others=FINDINGS),
        subgroups={
            "publisher_split": "",
            "sex": recoded(sex, {"F": "female", "M": "male"}, file),
            **age_columns(column(table, "Patient Age", file), file),
            "view": column(table, "View Position", file),
        },
    )
