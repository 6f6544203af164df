"""CheXpert-v1.0 and CheXpert-v1.0-small (Irvin et al., 2019): frontal radiographs by patient."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.demographics import Form, read_demographics
from crsbench.data.readers.findings import read_findings
from crsbench.data.readers.tables import (
    ImageTable,
    age_columns,
    build_image_table,
    columns_of,
    find_table,
    read_text_table,
    recoded,
)

BATCHES = {
    21514: "CheXpert-v1.0 batch 2 (train 1)",
    43018: "CheXpert-v1.0 batch 3 (train 2)",
    64541: "CheXpert-v1.0 batch 4 (train 3)",
}
"""The newer download's folders of the train part, by the first patient number beyond each."""

VALID_BATCH = "CheXpert-v1.0 batch 1 (validate & csv)"
TABLES = tuple(
    f"{folder}{part}.csv" for part in ("train", "valid") for folder in ("", f"{VALID_BATCH}/")
)
COLUMNS = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")
SEX = {"Female": "female", "Male": "male", "Unknown": ""}
DEMOGRAPHICS = Form("PATIENT", ("PRIMARY_RACE",), "ETHNICITY", "GENDER")
PATH = (
    r"^CheXpert-v1\.0[^/]*/(?P<part>train|valid)/(?P<patient>patient\d{5})/"
    r"(?P<study>study\d+)/(?P<view>view\d+_(?:frontal|lateral))\.jpg$"
)


def read_chexpert(entry: DatasetEntry, root: Path) -> ImageTable:
    """The frontal images of train.csv and valid.csv, grouped by patient.

    root: the release folder with `train/`, `valid/` and the tables, or the newer download's folder
    (`chexpertchestxrays-u20210408`) with its four batch folders, where the tables may lie in the
    first batch and a train image in the batch of its patient's number (that layout is known from
    public code, not from the publisher's page). The `Path` column starts with the release's name,
    whatever the folder on disk is called. An image's id is its path within the release, so that
    both sizes share the ids. Uncertain and blank labels: see `read_findings`. The entry's
    `demographics` may name the release's `CHEXPERT DEMO.xlsx` (its form is known from public code):
    see `read_demographics`.
    """
    files = [find_table(root, f"{p}.csv", f"{VALID_BATCH}/{p}.csv") for p in ("train", "valid")]
    columns = [*COLUMNS, *entry.classes]
    parts = [columns_of(read_text_table(file), columns, file) for file in files]
    file, table = files[0], pd.concat(parts, ignore_index=True)
    is_frontal = recoded(table["Frontal/Lateral"], {"Frontal": "yes", "Lateral": ""}, file) == "yes"
    frontal = table[is_frontal]
    names = _split_paths(frontal["Path"], file)
    sex = recoded(frontal["Sex"], SEX, file)
    more = read_demographics(entry, root, DEMOGRAPHICS, names["patient"], sex)
    return build_image_table(
        entry,
        file,
        ids=names["part"] + "/" + names["patient"] + "/" + names["study"] + "/" + names["view"],
        paths=_paths(root, names, entry.without_images),
        groups=names["patient"],
        truth=read_findings(entry, frontal, file),
        subgroups={
            "publisher_split": names["part"],
            "sex": sex,
            **age_columns(frontal["Age"], file),
            "view": frontal["AP/PA"],
            **more.columns,
        },
        left_out={"lateral view": len(table) - len(frontal)},
        demographics=more.report,
    )


def _split_paths(paths: pd.Series, file: Path) -> pd.DataFrame:
    names = paths.str.extract(PATH)
    odd = names["part"].isna()
    if odd.any():
        raise UserError(
            f"{file}: column 'Path' has the value '{paths[odd].iloc[0]}'; allowed is the form "
            "CheXpert-v1.0/train/patient00001/study1/view1_frontal.jpg."
        )
    return names


def _paths(root: Path, names: pd.DataFrame, without_images: bool) -> pd.Series:
    """Where the images lie below the root; without images as in the plain release."""
    rest = "/" + names["patient"] + "/" + names["study"] + "/" + names["view"] + ".jpg"
    is_valid = names["part"] == "valid"
    train_folder = pd.Series("train", index=names.index)
    if not without_images and not (root / "train").is_dir():
        _require_folders(root, list(BATCHES.values()), "train/")
        numbers = names["patient"].str.removeprefix("patient").astype(int)
        edges = [0, *BATCHES]
        train_folder = pd.cut(numbers, edges, right=False, labels=list(BATCHES.values()))
        if train_folder[~is_valid].isna().any():
            raise UserError(
                f"{root}: train patient {numbers[~is_valid].max()} belongs to no batch folder; "
                f"allowed are numbers below {edges[-1]}."
            )
        train_folder = train_folder.astype(object)
    valid_folder = "valid"
    if not without_images and is_valid.any() and not (root / "valid").is_dir():
        _require_folders(root, [f"{VALID_BATCH}/valid"], "valid/")
        valid_folder = f"{VALID_BATCH}/valid"
    return train_folder.where(~is_valid, valid_folder).astype(str) + rest


def _require_folders(root: Path, folders: list[str], plain: str) -> None:
    missing = [folder for folder in folders if not (root / folder).is_dir()]
    if missing:
        raise UserError(f"{root} holds neither {plain} nor '{missing[0]}'; check root.")
