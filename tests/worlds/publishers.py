"""Publishers' releases in miniature, that more than the readers' tests read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from crsbench.config.model import DatasetEntry
from crsbench.core.hashing import sha256_number

FINDINGS = [
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion"),
    *("Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion"),
    *("Pleural Other", "Fracture", "Support Devices"),
]


CHEXPERT_COLUMNS = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS]


Entry = Callable[..., DatasetEntry]


def write_image(file: Path, seed: int | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    number = sha256_number(file.name) if seed is None else seed
    pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def write_csv(file: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=list(columns)).to_csv(file, index=False)


def chexpert_row(
    path: str, labels: dict[str, float], view: str = "AP", sex: str = "Male", age: int = 61
) -> list[Any]:
    frontal = "Frontal" if "frontal" in path else "Lateral"
    values = [labels.get(name) for name in FINDINGS]
    return [path, sex, age, frontal, view if frontal == "Frontal" else None, *values]


def chexpert_tables(release: str) -> dict[str, list[list[Any]]]:
    """Six train rows (one lateral) of four patients, two valid rows (one lateral)."""
    train = f"{release}/train"
    return {
        "train": [
            chexpert_row(
                f"{train}/patient00001/study1/view1_frontal.jpg",
                {"Edema": 1.0, "Pneumonia": -1.0, "Cardiomegaly": 0.0},
                sex="Female",
                age=0,
            ),
            chexpert_row(f"{train}/patient00001/study1/view2_lateral.jpg", {"Edema": 1.0}),
            chexpert_row(
                f"{train}/patient21513/study1/view1_frontal.jpg", {"No Finding": 1.0}, age=17
            ),
            chexpert_row(
                f"{train}/patient21514/study2/view1_frontal.jpg",
                {"Edema": -1.0, "Atelectasis": -1.0},
                view="PA",
                age=90,
            ),
            chexpert_row(f"{train}/patient43018/study1/view1_frontal.jpg", {}, sex="Unknown"),
            chexpert_row(
                f"{train}/patient64540/study1/view1_frontal.jpg", {"Fracture": 1.0}, view="LL"
            ),
        ],
        "valid": [
            chexpert_row(
                f"{release}/valid/patient64541/study1/view1_frontal.jpg",
                dict.fromkeys(FINDINGS, 0.0) | {"Support Devices": 1.0},
            ),
            chexpert_row(f"{release}/valid/patient64541/study1/view2_lateral.jpg", {}),
        ],
    }


def write_chexpert(root: Path, release: str = "CheXpert-v1.0") -> Path:
    for part, rows in chexpert_tables(release).items():
        write_csv(root / f"{part}.csv", CHEXPERT_COLUMNS, rows)
        for row in rows:
            write_image(root / row[0].removeprefix(f"{release}/"))
    return root


def write_chexpert_batches(root: Path) -> Path:
    """The newer download: images by patient number in three folders, tables beside `valid`."""
    first = root / "CheXpert-v1.0 batch 1 (validate & csv)"
    tables = chexpert_tables("CheXpert-v1.0")
    for part, rows in tables.items():
        write_csv(first / f"{part}.csv", CHEXPERT_COLUMNS, rows)
    folders = {
        "00001": "batch 2 (train 1)",
        "21513": "batch 2 (train 1)",
        "21514": "batch 3 (train 2)",
        "43018": "batch 4 (train 3)",
        "64540": "batch 4 (train 3)",
    }
    for row in tables["train"]:
        place = row[0].removeprefix("CheXpert-v1.0/train/")
        write_image(root / f"CheXpert-v1.0 {folders[place[7:12]]}" / place)
    for row in tables["valid"]:
        write_image(first / row[0].removeprefix("CheXpert-v1.0/"))
    return root


def write_mimic(root: Path, suffix: str = ".gz") -> Path:
    """Six images of three patients; the columns of the labels stand in the alphabet's order."""
    images = [  # dicom, subject, study, ViewPosition, view code
        ("d1", "10000032", "50414267", "PA", "postero-anterior"),
        ("d2", "10000032", "50414267", "LATERAL", "lateral"),
        ("d3", "10000764", "57375967", None, "antero-posterior"),
        ("d4", "10000764", "57375967", None, None),
        ("d5", "19999987", "58621812", "AP", "antero-posterior"),
        ("d6", "19999987", "50000001", "AP", "antero-posterior"),  # a study without labels
    ]
    metadata = [
        "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns,"
        "StudyDate,StudyTime,ProcedureCodeSequence_CodeMeaning,ViewCodeSequence_CodeMeaning,"
        "PatientOrientationCodeSequence_CodeMeaning"
    ][0].split(",")
    labels = ["subject_id", "study_id", *sorted(FINDINGS)]
    positives = {
        "50414267": {"Atelectasis": 1.0, "Edema": -1.0},
        "57375967": {"No Finding": 1.0},
        "58621812": {},
    }
    subject_of = {study: subject for _, subject, study, _, _ in images}
    tables = {
        "metadata": (
            metadata,
            [
                [d, sub, study, None, view, 9, 9, 21800506, 213014.5, None, code, None]
                for d, sub, study, view, code in images
            ],
        ),
        "chexpert": (
            labels,
            [
                [subject_of[study], study, *(found.get(name) for name in sorted(FINDINGS))]
                for study, found in positives.items()
            ],
        ),
        "split": (
            ["dicom_id", "study_id", "subject_id", "split"],
            [
                [d, study, sub, "test" if sub == "19999987" else "train"]
                for d, sub, study, _, _ in images
            ],
        ),
    }
    for name, (columns, rows) in tables.items():
        write_csv(root / f"mimic-cxr-2.0.0-{name}.csv{suffix}", columns, rows)
    for d, sub, study, _, _ in images:
        write_image(root / "files" / f"p{sub[:2]}" / f"p{sub}" / f"s{study}" / f"{d}.jpg")
    return root
