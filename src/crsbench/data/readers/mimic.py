"""MIMIC-CXR-JPG 2.0.0 and 2.1.0 (Johnson et al.): frontal radiographs by patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.hashing import sha256_number
from crsbench.data.readers.demographics import Form, read_demographics
from crsbench.data.readers.findings import read_findings
from crsbench.data.readers.tables import (
    ImageTable,
    build_image_table,
    column,
    find_table,
    read_text_table,
    require_unique,
)

TABLES = tuple(f"mimic-cxr-2.0.0-{part}.csv" for part in ("metadata", "chexpert", "split"))
DEMOGRAPHICS = Form("subject_id", ("race", "ethnicity"))
FRONTAL = ("AP", "PA")
VIEW_CODES = {"antero-posterior": "AP", "postero-anterior": "PA"}


def read_mimic(entry: DatasetEntry, root: Path) -> ImageTable:
    """The frontal images of a SHA-256-chosen share of patients, with their study's labels.

    root: the folder with `files/` and the tables (gzipped or not), which keep the name 2.0.0 in
    release 2.1.0. Columns are taken by name: the labels stand in another order than CheXpert's. An
    image is frontal when its ViewPosition is AP or PA. Where ViewPosition is empty (about 15,800
    images) its ViewCodeSequence_CodeMeaning decides, antero-posterior or postero-anterior; without
    either the image is left out and counted. An image whose study has no row of labels is left out
    and counted; a study with blanks only has no finding at all. The entry's `patient_share` (1 by
    default) chooses patients by the SHA-256 of their number. Uncertain and blank labels: see
    `read_findings`. The entry's `demographics` may name MIMIC-IV's table of admissions (`race`, up
    to release 1.0 `ethnicity`): see `read_demographics`.
    """
    (file, table), (label_file, labels), (split_file, splits) = (
        (found, read_text_table(found)) for found in (find_table(root, name) for name in TABLES)
    )
    view = _views(table, file)
    studies = column(labels, "study_id", label_file)
    labelled = column(table, "study_id", file).isin(studies)
    chosen = _chosen(column(table, "subject_id", file), entry.spec.get("patient_share", 1))
    kept = chosen & view.isin(FRONTAL) & labelled
    left_out = {
        "patient not chosen": int((~chosen).sum()),
        "other view": int((chosen & ~view.isin([*FRONTAL, ""])).sum()),
        "no view stated": int((chosen & (view == "")).sum()),
        "study without labels": int((chosen & view.isin(FRONTAL) & ~labelled).sum()),
    }
    images = table[kept].reset_index(drop=True)
    ids, subjects, study = (images[name] for name in ("dicom_id", "subject_id", "study_id"))
    require_unique(studies, label_file)
    require_unique(column(splits, "dicom_id", split_file), split_file)
    findings = labels.set_index("study_id").loc[study].reset_index(drop=True)
    split_of = pd.Series(
        column(splits, "split", split_file).to_numpy(), column(splits, "dicom_id", split_file)
    )
    more = read_demographics(entry, root, DEMOGRAPHICS, subjects)
    return build_image_table(
        entry,
        file,
        ids=ids,
        paths="files/p" + subjects.str[:2] + "/p" + subjects + "/s" + study + "/" + ids + ".jpg",
        groups=subjects,
        truth=read_findings(entry, findings, label_file),
        subgroups={
            "publisher_split": ids.map(split_of).fillna(""),
            "view": view[kept].reset_index(drop=True),
            **more.columns,
        },
        left_out=left_out,
        demographics=more.report,
    )


def _views(table: pd.DataFrame, file: Path) -> pd.Series:
    """AP, PA, another stated view, or empty."""
    stated = column(table, "ViewPosition", file)
    coded = column(table, "ViewCodeSequence_CodeMeaning", file)
    return stated.where(stated != "", coded.map(VIEW_CODES).fillna(coded))


def _chosen(subjects: pd.Series, share: float) -> pd.Series:
    """Mask (n,) of the images whose patient's hash falls into the share."""
    patients = subjects.unique()
    hashes = np.array([sha256_number("patients", patient) for patient in patients], np.uint64)
    return subjects.isin(patients[hashes < share * 2.0**64])
