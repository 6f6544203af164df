"""Race and ethnicity from the publishers' files: joined by patient, counted, never filled in."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from crsbench.config.load import load_config
from crsbench.core.errors import UserError
from crsbench.data.audit import write_audit
from crsbench.data.manifest import read_manifest, write_manifest
from crsbench.data.readers import read_images, source_tables
from crsbench.data.readers.demographics import merged_ethnicity, merged_race
from worlds.publishers import Entry, write_chexpert, write_chexpert_batches, write_mimic

COLUMNS = ["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"]
NAME = "CHEXPERT DEMO.xlsx"
ROWS = [
    ["patient00001", "Female", 45, "White, non-Hispanic", "Non-Hispanic/Non-Latino"],
    ["patient21513", "Male", 17, "Black or African American", "Unknown"],
    ["patient21513", "Male", 18, "Black or African American", "Not Hispanic"],
    ["patient21514", "Female", 90, "Asian", "Hispanic/Latino"],  # Male in train.csv
    ["patient21514", "Female", 90, "White", "Hispanic/Latino"],
    ["patient43018", "Male", 61, "Race and Ethnicity Unknown", "Patient Refused"],
    ["patient64541", "Male", 61, "Native Hawaiian or Other Pacific Islander", "Unknown"],
    ["patient70000", "Male", 61, "White", "Unknown"],  # no image
]  # patient64540 has no row


def write_demo(file: Path, rows: list[list[Any]] = ROWS, columns: list[str] = COLUMNS) -> Path:
    """The workbook as the publisher ships it, its one filled sheet beside an empty one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows, columns=columns)
    if file.suffix == ".csv":
        frame.to_csv(file, index=False)
    else:
        with pd.ExcelWriter(file) as book:
            frame.to_excel(book, sheet_name="CheXpert Demo 11-13", index=False)
            pd.DataFrame({"notes": ["none"]}).to_excel(book, sheet_name="Sheet2", index=False)
    return file


def by_patient(frame: pd.DataFrame, name: str) -> dict[str, str]:
    return dict(zip(frame["group"].str.removeprefix("group:"), frame[name], strict=True))


def test_race_is_joined_by_patient_and_nothing_is_filled_in(
    entry_of: Entry, tmp_path: Path
) -> None:
    root = write_chexpert_batches(tmp_path / "chexpertchestxrays-u20210408")
    write_demo(root / NAME)
    entry = entry_of("chexpert", demographics=NAME)
    found = read_images(entry, root)
    assert by_patient(found.frame, "race") == {
        "patient00001": "white",
        "patient21513": "black",
        "patient21514": "",  # two rows contradict each other
        "patient43018": "",  # stated to be unknown
        "patient64540": "",  # no row
        "patient64541": "other",
    }
    assert by_patient(found.frame, "ethnicity") == {
        "patient00001": "not hispanic",
        "patient21513": "not hispanic",  # an unknown contradicts nothing
        "patient21514": "hispanic",
        "patient43018": "",
        "patient64540": "",
        "patient64541": "",
    }
    assert found.demographics == {
        "file": NAME,
        "patients": 6,
        "patients_without_row": 1,
        "rows_of_other_patients": 1,
        "patients_with_contradicting_rows": {"race": 1, "ethnicity": 0},
        "patients_of_another_sex": 1,
    }
    # All else is as without the file.
    rest = found.frame.drop(columns=["race", "ethnicity"])
    pd.testing.assert_frame_equal(rest, read_images(entry_of("chexpert"), root).frame)
    assert root / NAME in source_tables(entry, root)


def test_a_csv_of_the_sheet_and_rows_in_another_order_give_the_same(
    entry_of: Entry, tmp_path: Path
) -> None:
    root = write_chexpert(tmp_path)
    write_demo(root / NAME)
    write_demo(root / "demo.csv", ROWS[::-1])
    frames = [
        read_images(entry_of("chexpert", demographics=name), root).frame
        for name in (NAME, "demo.csv")
    ]
    pd.testing.assert_frame_equal(*frames)


def test_the_audit_and_the_manifest_carry_it(entry_of: Entry, tmp_path: Path) -> None:
    root = write_chexpert(tmp_path / "release")
    write_demo(root / NAME)
    manifest, images = tmp_path / "manifest.parquet", tmp_path / "images.parquet"
    for name, expected in ((NAME, True), (None, False)):
        entry = entry_of("chexpert", demographics=name)
        write_manifest(manifest, images, entry, root, max_pixels=10**6, workers=1)
        write_audit(tmp_path / "audit.json", entry, manifest, images, {}, {})
        audit = json.loads((tmp_path / "audit.json").read_text("utf-8"))
        assert ("demographics" in audit) == expected
        assert ("race" in read_manifest(manifest).subgroups) == expected
        if expected:
            assert audit["demographics"]["patients_without_row"] == 1
            assert audit["missing_metadata"]["race"] == 3


def test_race_selects_images_too(entry_of: Entry, tmp_path: Path) -> None:
    root = write_chexpert(tmp_path)
    write_demo(root / NAME)
    entry = entry_of("chexpert", demographics=NAME, where={"race": ["white", "black"]})
    found = read_images(entry, root)
    assert set(by_patient(found.frame, "race")) == {"patient00001", "patient21513"}


@pytest.mark.parametrize("name", ["race", "ethnicity"])
def test_mimic_has_it_from_the_admissions_of_mimic_iv(
    name: str, entry_of: Entry, tmp_path: Path
) -> None:
    root = write_mimic(tmp_path / "mimic-cxr-jpg")
    file = tmp_path / "mimiciv" / "hosp" / "admissions.csv.gz"
    file.parent.mkdir(parents=True)
    rows = [
        ("10000032", 1, "WHITE - RUSSIAN"),
        ("10000032", 2, "UNKNOWN"),
        ("10000764", 3, "HISPANIC/LATINO - PUERTO RICAN"),
        ("19999987", 4, "BLACK/AFRICAN AMERICAN"),
        ("19999987", 5, "PATIENT DECLINED TO ANSWER"),
        ("19999987", 6, "ASIAN - CHINESE"),
    ]
    table = pd.DataFrame(rows, columns=["subject_id", "hadm_id", name])
    with gzip.open(file, "wt") as handle:
        table.to_csv(handle, index=False)
    path = "../mimiciv/hosp/admissions.csv.gz"
    found = read_images(entry_of("mimic", patient_share=None, demographics=path), root)
    assert by_patient(found.frame, "race") == {
        "10000032": "white",
        "10000764": "hispanic",
        "19999987": "",
    }
    assert found.demographics["patients_with_contradicting_rows"] == {"race": 1}
    assert "patients_of_another_sex" not in found.demographics


@pytest.mark.parametrize(
    ("stated", "race"),
    [
        ("White", "white"),
        ("White, Hispanic", "white"),
        ("Caucasian", "white"),  # not asian, for all its letters
        ("WHITE - OTHER EUROPEAN", "white"),
        ("Black, non-Hispanic", "black"),
        ("BLACK/CAPE VERDEAN", "black"),
        ("Asian - Historical Conv", "asian"),
        ("Black and Asian", "other"),
        ("Other, Hispanic", "hispanic"),
        ("HISPANIC OR LATINO", "hispanic"),
        ("Other, non-Hispanic", "other"),
        ("Native American", "other"),
        ("Unknown", ""),
        ("UNABLE TO OBTAIN", ""),
        ("Patient Refused", ""),
        ("", ""),
        ("  ", ""),
    ],
)
def test_texts_are_merged_by_the_words_that_name_a_race(stated: str, race: str) -> None:
    assert merged_race(stated) == race


@pytest.mark.parametrize(
    ("stated", "ethnicity"),
    [
        ("Hispanic/Latino", "hispanic"),
        ("Non-Hispanic/Non-Latino", "not hispanic"),
        ("Not Hispanic", "not hispanic"),
        ("Unknown", ""),
        ("", ""),
    ],
)
def test_ethnicity_is_stated_or_not(stated: str, ethnicity: str) -> None:
    assert merged_ethnicity(stated) == ethnicity


def test_what_is_wrong_is_reported(
    entry_of: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_chexpert(tmp_path)
    entry = entry_of("chexpert", demographics=NAME)

    def refused(sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            read_images(entry, root)

    refused(r"demographics file .*CHEXPERT DEMO.xlsx is missing")
    write_demo(root / NAME, columns=[*COLUMNS[:3], "RACE", "ETHNICITY"])
    refused(r"has no column 'PRIMARY_RACE' \(did you mean 'RACE'\?\)")
    write_demo(root / NAME, columns=["Patient", *COLUMNS[1:]])
    refused(r"has 0 sheets with a column 'PATIENT'.*CheXpert Demo 11-13, Sheet2")
    write_demo(root / NAME, [["1", "Male", 5, "White", ""]])
    refused(r"'PATIENT' has none of the 6 patients .* such as 'patient00001'; it has '1'")
    (root / NAME).write_bytes(b"PK no workbook")
    refused("cannot be read as an Excel file")

    write_demo(root / NAME)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("openpyxl"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    refused(r"needs openpyxl.*pip install 'crsbench\[excel\]'")


def test_only_chexpert_and_mimic_take_the_key(
    settings: Callable[[str], Any], home: Path, tmp_path: Path
) -> None:
    text = (home / "config/datasets.yaml").read_text("utf-8")
    config = settings("config") | {"dataset_registry": str(tmp_path / "datasets.yaml")}
    for before, after, sentence in (
        ("  reader: aptos2019\n", "  reader: aptos2019\n  demographics: a.csv\n", "demographics"),
        ("  reader: chexpert\n", "  reader: chexpert\n  demographics: a.txt\n", "a.txt"),
    ):
        (tmp_path / "datasets.yaml").write_text(text.replace(before, after, 1), "utf-8")
        with pytest.raises(UserError, match=sentence):
            load_config(config, home)
    changed = text.replace("  reader: mimic\n", "  reader: mimic\n  demographics: a.csv.gz\n", 1)
    (tmp_path / "datasets.yaml").write_text(changed, "utf-8")
    assert load_config(config, home).targets["mimic"].spec["demographics"] == "a.csv.gz"
