"""PadChest (Bustos et al., 2020): frontal radiographs, findings of a hierarchical vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.tables import (
    ImageTable,
    age_bands,
    build_image_table,
    column,
    find_images,
    read_found,
    recoded,
)

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
TABLES = (TABLE, f"labels_csv/{TABLE}")
FRONTAL = ("PA", "AP", "AP_horizontal")
SEX = {"F": "female", "M": "male", "O": "", "None": ""}

NARROWER = {
    "atelectasis": (
        *("total atelectasis", "lobar atelectasis", "segmental atelectasis"),
        *("laminar atelectasis", "round atelectasis", "atelectasis basal"),
    ),
    "pneumonia": ("atypical pneumonia",),
    "pleural effusion": (
        *("loculated pleural effusion", "loculated fissural effusion"),
        *("hydropneumothorax", "empyema", "hemothorax"),
    ),
    "pneumothorax": ("hydropneumothorax",),
}
"""What stands below a finding in the publisher's tree: who has it has the finding."""

SAYS_NOTHING = {"unchanged", "suboptimal study"}
"""Labels that leave open what the image shows."""


def read_padchest(entry: DatasetEntry, root: Path) -> ImageTable:
    """The frontal images of the label table, grouped by patient.

    root: the folder with the table (or `labels_csv/` with it) and the images, in `images/`, in
    folders by `ImageDir` (`0/` … `54/`) or these within `images/` or `image_zips/`. The layout and
    the tree of findings are known from public code, not from the publisher's own archive.

    The entry's `label_map` gives the publisher's name of each class; an image has the class if it
    is labelled with that name or one below it in the publisher's tree. No finding of the vocabulary
    is, one to one, Enlarged Cardiomediastinum, Lung Opacity, Lung Lesion, Pleural Other, Fracture
    or Support Devices, so these are no classes here, and other findings are passed over.

    Frontal are the projections PA, AP and AP_horizontal (supine). An image marked `exclude`, and
    one whose report says nothing of what it shows (no label, or only `unchanged` and the like), is
    left out and counted. `labelled_by` distinguishes labels by physicians from the publisher's
    network's. The PNGs are 16-bit; some are known to be missing or cut off.
    """
    file, table = read_found(root, *TABLES)
    view = column(table, "Projection", file)
    findings = _findings(column(table, "Labels", file), file)
    frontal = view.isin(FRONTAL)
    excluded = findings.map(lambda names: "exclude" in names)
    silent = findings.map(lambda names: names <= SAYS_NOTHING)
    images = table[frontal & ~excluded & ~silent].reset_index(drop=True)
    names = column(images, "ImageID", file)
    found = find_images(root, "*/*.png", "images/*/*.png", "image_zips/*/*.png")
    age = _ages(images, file)
    return build_image_table(
        entry,
        file,
        ids=names.str.removesuffix(".png"),
        paths=names.map(found).fillna(column(images, "ImageDir", file) + "/" + names),
        groups=column(images, "PatientID", file),
        truth=_truth(entry, findings[frontal & ~excluded & ~silent]),
        subgroups={
            "publisher_split": "",
            "sex": recoded(column(images, "PatientSex_DICOM", file), SEX, file),
            "age": age,
            "age_band": age_bands(age, file),
            "view": column(images, "Projection", file),
            "labelled_by": column(images, "MethodLabel", file),
        },
        left_out={
            "other view": int((~frontal).sum()),
            "marked exclude": int((frontal & excluded).sum()),
            "report says nothing": int((frontal & ~excluded & silent).sum()),
        },
    )


def _findings(cells: pd.Series, file: Path) -> pd.Series:
    """The set of labels in each cell, which is written as a Python list of strings, or empty."""
    odd = ~cells.str.fullmatch(r"\s*(?:\[.*\]|nan)?\s*")
    if odd.any():
        raise UserError(
            f"{file}: column 'Labels' has the value '{cells[odd].iloc[0]}'; allowed is a list like "
            "['cardiomegaly', 'pleural effusion']."
        )
    quoted = re.compile(r"""'([^']*)'|"([^"]*)\"""")
    return cells.map(
        lambda cell: {(one or other).strip() for one, other in quoted.findall(cell)} - {""}
    )


def _truth(entry: DatasetEntry, findings: pd.Series) -> np.ndarray:
    names = {label: name for name, label in entry.spec.get("label_map", {}).items()}
    columns = []
    for label in entry.classes:
        name = names.get(label, label)
        wanted = {name, *NARROWER.get(name, ())}
        columns.append([not wanted.isdisjoint(labels) for labels in findings])
    return np.array(columns, dtype=np.int8).T


def _ages(images: pd.DataFrame, file: Path) -> pd.Series:
    """Year of the study less year of birth; empty where either is unknown."""
    study = pd.to_numeric(column(images, "StudyDate_DICOM", file).str[:4], errors="coerce")
    birth = pd.to_numeric(column(images, "PatientBirth", file), errors="coerce")
    years = (study - birth).where(lambda age: age >= 0)
    return years.map(lambda age: "" if np.isnan(age) else str(int(age)))
