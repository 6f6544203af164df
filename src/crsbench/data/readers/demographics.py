"""Race and ethnicity by patient, from the file that some publishers ship beside the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.tables import column, read_text_table

RACES = {
    "white": r"\b(white|caucasian)\b",
    "black": r"\bblack\b",
    "asian": r"\basian\b",
}
"""What the publishers' free texts are merged into, by the words that name it."""

SEXES = ("female", "male")
UNSTATED = r"unknown|unable|declined|refused|not specified"


@dataclass(frozen=True)
class Form:
    """How a publisher's file is laid out.

    patient: the column to join by; race: the names that its column has had; ethnicity and sex:
    their columns, None where the file has none.
    """

    patient: str
    race: tuple[str, ...]
    ethnicity: str | None = None
    sex: str | None = None


@dataclass(frozen=True)
class Demographics:
    """columns: subgroup columns (n,), empty where nothing or nothing unambiguous is stated.

    report: for the audit, how patients and rows went together.
    """

    columns: Mapping[str, pd.Series]
    report: Mapping[str, Any]


def read_demographics(
    entry: DatasetEntry, root: Path, form: Form, patients: pd.Series, sex: pd.Series | None = None
) -> Demographics:
    """Race (and ethnicity) of each image's patient from the entry's `demographics` file.

    Nothing is filled in: a patient without a row, one whose rows contradict each other, and one
    whose text states nothing stay empty, and the report counts them. Texts are merged, see
    `merged_race` and `merged_ethnicity`.

    patients, sex: (n,) of the images, sex in the benchmark's words; where the file states another
    one the patient is counted, and the sex stays that of the publisher's label table. Without the
    key there are no columns and nothing to report.

    Raises UserError when the file is absent, lacks a column, or knows none of the patients.
    """
    name = entry.spec.get("demographics")
    if name is None:
        return Demographics({}, {})
    file = root / name
    table = _read(file, form.patient)
    rows = column(table, form.patient, file)
    known = patients.isin(rows)
    if not known.any():
        raise UserError(
            f"{file}: column '{form.patient}' has none of the {patients.nunique()} patients of "
            f"data set '{entry.name}', such as '{patients.iloc[0]}'; it has '{rows.iloc[0]}'."
        )
    race = next((name for name in form.race if name in table.columns), form.race[0])
    stated = {"race": _merged(column(table, race, file), merged_race)}
    if form.ethnicity is not None:
        stated["ethnicity"] = _merged(column(table, form.ethnicity, file), merged_ethnicity)
    by_patient = {name: _by_patient(rows, values) for name, values in stated.items()}
    report = {
        "file": name,
        "patients": int(patients.nunique()),
        "patients_without_row": int(patients[~known].nunique()),
        "rows_of_other_patients": int((~rows.isin(patients)).sum()),
        "patients_with_contradicting_rows": {
            name: int(patients[patients.isin(twice)].nunique())
            for name, (_, twice) in by_patient.items()
        },
    }
    if form.sex is not None and sex is not None:
        theirs = column(table, form.sex, file).str.lower().where(lambda s: s.isin(SEXES), "")
        report["patients_of_another_sex"] = _of_another_sex(patients, sex, rows, theirs)
    columns = {name: patients.map(values).fillna("") for name, (values, _) in by_patient.items()}
    return Demographics(columns, report)


def merged_race(stated: str) -> str:
    """white, black or asian where the text names exactly one of them; hispanic where it names none
    but that; other for any other text; empty where it states nothing."""
    text = stated.lower()
    if not text.strip() or re.search(UNSTATED, text):
        return ""
    named = [race for race, words in RACES.items() if re.search(words, text)]
    if len(named) == 1:
        return named[0]
    return "hispanic" if not named and merged_ethnicity(stated) == "hispanic" else "other"


def merged_ethnicity(stated: str) -> str:
    """hispanic or not hispanic; empty where the text states neither."""
    text = stated.lower()
    if not re.search(r"hispanic|latino|latina", text):
        return ""
    return "not hispanic" if re.search(r"\b(non|not)\b", text) else "hispanic"


def _merged(values: pd.Series, rule: Any) -> pd.Series:
    return values.map({value: rule(value) for value in values.unique()})


def _by_patient(rows: pd.Series, values: pd.Series) -> tuple[pd.Series, set[str]]:
    """The value of each patient who has exactly one, and the patients who have several."""
    pairs = pd.DataFrame({"patient": rows, "value": values})
    pairs = pairs[pairs["value"] != ""].drop_duplicates()
    several = pairs["patient"].duplicated(keep=False)
    return pairs[~several].set_index("patient")["value"], set(pairs.loc[several, "patient"])


def _of_another_sex(patients: pd.Series, sex: pd.Series, rows: pd.Series, theirs: pd.Series) -> int:
    """How many patients' sex the file states otherwise than the images' own table."""
    ours = pd.DataFrame({"patient": patients, "ours": sex}).drop_duplicates()
    both = ours.merge(pd.DataFrame({"patient": rows, "theirs": theirs}), on="patient")
    differs = (both["ours"] != both["theirs"]) & (both["ours"] != "") & (both["theirs"] != "")
    return int(both.loc[differs, "patient"].nunique())


def _read(file: Path, patient: str) -> pd.DataFrame:
    """A CSV, or the sheet of an Excel file that has the column `patient`; all cells as text."""
    if not file.is_file():
        raise UserError(f"The demographics file {file} is missing; check the key demographics.")
    if file.suffix.lower() != ".xlsx":
        return read_text_table(file)
    try:
        sheets = pd.read_excel(file, sheet_name=None, dtype=str, keep_default_na=False)
    except ImportError as error:
        raise UserError(
            f"{file} needs openpyxl, which is not installed; pip install 'crsbench[excel]', or "
            "save the sheet as CSV."
        ) from error
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} cannot be read as an Excel file: {reason}.") from error
    fitting = [sheet for sheet in sheets.values() if patient in sheet.columns]
    if len(fitting) != 1:
        raise UserError(
            f"{file} has {len(fitting)} sheets with a column '{patient}'; allowed is one (its "
            f"sheets: {', '.join(sheets)})."
        )
    return fitting[0]
