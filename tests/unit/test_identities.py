"""Who is one patient: spellings, placeholders and giant groups are refused by name or put right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.audit import write_audit
from crsbench.data.audit_page import notices, summaries, write_audit_page
from crsbench.data.manifest import read_manifest, write_manifest
from crsbench.data.readers import read_images
from crsbench.data.readers.identities import folded, giant_groups, placeholders, spelled_alike
from crsbench.data.splits import write_split, write_test

Entry = Callable[..., DatasetEntry]
COLUMNS = {"id": "id", "path": "path", "label": "label", "group": "patient"}


def table_of(root: Path, patients: list[str], **columns: list[str]) -> Path:
    """A CSV of an image a patient's cell, labels a and b in turn; further columns as they are."""
    root.mkdir(parents=True, exist_ok=True)
    names = [f"i{number:03d}" for number in range(len(patients))]
    frame = pd.DataFrame(
        {"id": names, "path": [f"{name}.png" for name in names], "patient": patients}
    ).assign(label=["ab"[number % 2] for number in range(len(patients))])
    frame.assign(**columns).to_csv(root / "table.csv", index=False)
    return root


def groups_of(entry: DatasetEntry, root: Path) -> list[str]:
    return [group.partition(":")[2] for group in read_images(entry, root).frame["group"]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("p7", "P7"),
        ("Straße", "STRASSE"),
        ("p 7", "p7"),
        ("p\u00a07", "p 7"),
        ("p\u20037", "p7"),
        ("p\u200b7", "p7"),
        ("00012", "12"),
        ("p007", "p7"),
        ("p7.0", "p7"),
        ("12.00", "12"),
        ("１２", "12"),
        ("\u0661\u0662", "12"),
        ("1e3", "1000"),
        ("1,000", "1000"),
        ("12,0", "12"),
        ("+12", "12"),
        ("p\u20117", "p-7"),
        ("p\u22127", "p-7"),
        ("'p7", "p7"),
        ('="p7"', "p7"),
        ("p7;", "p7"),
        ("p\u202a7", "p7"),
        ("p\x017", "p7"),
        ("\u0130z7", "iz7"),
        ("IZ\u0131R", "izir"),
        ("M\u00fc7", "Mu\u03087"),
    ],
)
def test_names_that_differ_by_mistake_fold_to_one(one: str, other: str) -> None:
    assert spelled_alike([one, other, "another"]) == [sorted([one, other])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1 12", "11 2"),
        ("1.05", "1.5"),
        ("p10", "p1"),
        ("1.2.3.0", "1.2.3"),
        ("p_1", "p1"),
        ("0", "00x"),
        ("1,112", "111,2"),
        ("p1e3", "p1000"),
        ("-7", "7"),
        ("12e", "12"),
    ],
)
def test_names_that_differ_stay_separate(one: str, other: str) -> None:
    assert folded(one) != folded(other)


@pytest.mark.parametrize(
    "patients",
    [
        ["p1", "p1 ", " p1", "p2"],
        ["p1", "p1\u00a0", "\u2003p1", "p2"],
        ["1", "1.0", "1.", "2.0"],
        ["p1", "\ufeffp1", "p1\t", "p2\u200b"],
    ],
)
def test_space_about_a_cell_and_the_point_of_a_whole_number_make_no_patient(
    table_entry: Entry, tmp_path: Path, patients: list[str]
) -> None:
    root = table_of(tmp_path / "small", patients)
    groups = groups_of(table_entry(columns=COLUMNS), root)
    assert groups[0] == groups[1] == groups[2] != groups[3]


@pytest.mark.parametrize("key", ["patient", "id"])
@pytest.mark.parametrize(
    ("one", "other"), [("p1", "P1"), ("007", "7"), ("p1.0", "p1"), ("p 1", "p\u00a01")]
)
def test_other_spellings_of_a_name_stop_the_run_and_can_be_kept(
    table_entry: Entry, tmp_path: Path, key: str, one: str, other: str
) -> None:
    root = table_of(tmp_path / "small", ["q1", "q2", "q3"], **{key: [one, other, "z9"]})
    with pytest.raises(UserError, match=r"differ only in case.*similar_names: keep") as error:
        read_images(table_entry(columns=COLUMNS), root)
    assert f"{one!r}"[1:-1] in str(error.value)
    entry = table_entry(columns=COLUMNS, similar_names="keep")
    assert len(set(groups_of(entry, root))) == 3


def test_patients_are_compared_across_the_rows_of_where(table_entry: Entry, tmp_path: Path) -> None:
    root = table_of(tmp_path / "small", ["p1", "P1", "p2"], view=["PA", "AP", "PA"])
    with pytest.raises(UserError, match="'P1' and 'p1'"):
        read_images(table_entry(columns=COLUMNS, where={"view": "PA"}), root)


def test_numbers_that_a_spreadsheet_rounded_are_refused(table_entry: Entry, tmp_path: Path) -> None:
    root = table_of(tmp_path / "small", ["1.23457E+12", "1.23457E+12", "7"])
    with pytest.raises(UserError, match=r"'1.23457E\+12' is a number that a spreadsheet"):
        read_images(table_entry(columns=COLUMNS), root)


@pytest.mark.parametrize(
    "word",
    [
        "NaN",
        "Unknown",
        "None",
        "N/A",
        "-",
        "null",
        "UNKNOWN",
        "not  available",
        "?",
        "0",
        "-1",
        "999",
    ],
)
def test_a_placeholder_is_no_patient_unless_the_entry_says_so(
    table_entry: Entry, tmp_path: Path, word: str
) -> None:
    root = table_of(tmp_path / "small", ["p1", word, "p2", word])
    with pytest.raises(UserError, match=r"\(2 images\).*placeholder_groups"):
        read_images(table_entry(columns=COLUMNS), root)
    missing = table_entry(columns=COLUMNS, placeholder_groups="missing")
    assert groups_of(missing, root) == ["p1", "i001", "p2", "i003"]
    kept = groups_of(table_entry(columns=COLUMNS, placeholder_groups="keep"), root)
    assert kept[1] == kept[3] == word


def test_a_cell_of_space_is_an_image_without_patient(table_entry: Entry, tmp_path: Path) -> None:
    root = table_of(tmp_path / "small", ["p1", " ", "\u00a0", ""])
    assert groups_of(table_entry(columns=COLUMNS), root) == ["p1", "i001", "i002", "i003"]


@pytest.mark.parametrize(
    "text",
    [
        *("N.A", "n-a", "(unknown)", "[Unknown]", "unknown_id", "Not applicable", "not recorded"),
        *("unbekannt", "#NAME?", "#DIV/0!", "\\N", "***", "~", "XXXX", "0.0", "-1.0", "-9"),
    ],
)
def test_marks_and_words_that_say_unknown_are_no_name(text: str) -> None:
    assert placeholders(pd.Series(["p1", "p1", text, "p2"])) == {text: 1}


@pytest.mark.parametrize("text", ["#7", "p-1", "x1", "anna", "Nat2", "ref"])
def test_names_with_marks_are_names(text: str) -> None:
    assert placeholders(pd.Series(["p1", "p1", text, "p2"])) == {}


def test_the_one_negative_number_is_no_patient() -> None:
    assert placeholders(pd.Series(["1", "1", "2", "-9", "-9"])) == {"-9": 2}
    assert placeholders(pd.Series(["-8", "-9", "2"])) == {}


def test_a_separate_accent_is_shown_by_its_escape(table_entry: Entry, tmp_path: Path) -> None:
    root = table_of(tmp_path / "small", ["M\u00fc", "Mu\u0308", "z9"])
    with pytest.raises(UserError, match=r"'M\u00fc'.*'Mu\\u0308'|'Mu\\u0308'.*'M\u00fc'"):
        read_images(table_entry(columns=COLUMNS), root)


def test_a_numbering_may_begin_with_nought() -> None:
    assert placeholders(pd.Series(["0", "0", "1", "1", "2", "2"])) == {}
    assert placeholders(pd.Series(["0"] * 5 + ["1", "1", "2", "2"])) == {"0": 5}
    assert placeholders(pd.Series(["0", "p1", "p2"])) == {"0": 1}
    assert placeholders(pd.Series(["0", "0"])) == {"0": 2}
    assert placeholders(pd.Series([], dtype=str)) == {}


def test_a_giant_group_is_large_against_all_and_against_the_usual() -> None:
    groups = pd.Series(["big"] * 30 + [f"p{number // 2}" for number in range(70)])
    assert giant_groups(groups, 0.2) == {"big": 30}
    assert giant_groups(groups, 0.3) == {}
    assert giant_groups(pd.Series(["a"] * 3 + ["b"] * 3), 0.2) == {}


def audited(
    entry: DatasetEntry, root: Path, out: Path, share: float = 0.2
) -> tuple[dict[str, Any], str]:
    """The audit of a table of drawn images, as JSON and as a page."""
    for number, path in enumerate(pd.read_csv(root / "table.csv")["path"]):
        pixels = bytes((number * 37 + place * (number + 3)) % 256 for place in range(24 * 24))
        Image.frombytes("L", (24, 24), pixels).save(root / path)
    manifest, images, split = (
        out / "manifest.parquet",
        out / "images.parquet",
        out / "seed0.parquet",
    )
    write_manifest(manifest, images, entry, root, max_pixels=10**6, workers=1)
    write_test(out / "test.parquet", manifest, 0.2)
    write_split(split, manifest, out / "test.parquet", 0, (50, 100), 0.125)
    write_audit(out / "audit.json", entry, manifest, images, {0: split}, {}, share)
    write_audit_page(out / "audit.md", out / "audit.json")
    return json.loads((out / "audit.json").read_text("utf-8")), (out / "audit.md").read_text(
        "utf-8"
    )


def test_a_giant_group_stops_the_run_and_accepted_it_is_noticed(
    table_entry: Entry, tmp_path: Path
) -> None:
    patients = ["clinic"] * 24 + [f"p{number // 2}" for number in range(36)]
    root = table_of(tmp_path / "small", patients)
    with pytest.raises(UserError, match=r"the group 'clinic' has 24 of 60 images.*largest_group"):
        audited(table_entry(columns=COLUMNS), root, tmp_path / "out")
    audit, page = audited(table_entry(columns=COLUMNS, largest_group=0.5), root, tmp_path / "out")
    assert any("'clinic' has 24 of 60" in notice for notice in audit["notices"]), audit["notices"]
    assert "'clinic' has 24 of 60" in page


def test_a_class_without_test_images_and_a_missed_share_are_noticed_everywhere(
    table_entry: Entry, tmp_path: Path
) -> None:
    # all images of class c are one patient's, so they can't be in train and test
    patients = ["only"] * 4 + [f"p{number}" for number in range(56)]
    labels = ["c"] * 4 + ["ab"[number % 2] for number in range(56)]
    root = table_of(tmp_path / "small", patients, label=labels)
    entry = table_entry(columns=COLUMNS, classes=["a", "b", "c", "d"])
    audit, page = audited(entry, root, tmp_path / "out", share=0.4)
    said = "\n".join(audit["notices"])
    assert "The class 'c' (4 images) has no image in the t" in said
    assert "The class 'd' has no image." in said
    assert "of the images where splits.test asks for 40.0%" in said
    terminal = notices([tmp_path / "out/audit.json", tmp_path / "absent.json"])
    summary = summaries({"audit.md": tmp_path / "out/audit.json"})
    for notice in audit["notices"]:
        assert notice in page
        assert f"small: {notice}" in terminal
        assert notice in summary


def test_a_set_without_patients_says_so_and_a_clean_one_says_nothing(
    table_entry: Entry, tmp_path: Path
) -> None:
    root = table_of(tmp_path / "small", [f"p{number // 2}" for number in range(60)])
    without = {key: COLUMNS[key] for key in ("id", "path", "label")}
    audit, _ = audited(table_entry(columns=without), root, tmp_path / "one")
    assert len(audit["notices"]) == 1
    assert audit["notices"][0].startswith("No image has a stated patient or lesion")
    audit, page = audited(table_entry(columns=COLUMNS), root, tmp_path / "two")
    assert audit["notices"] == []
    assert "No notice" in page


def test_names_alike_are_listed_by_the_audit_where_they_are_kept(
    table_entry: Entry, tmp_path: Path
) -> None:
    patients = [f"p{number // 2}" for number in range(58)] + ["P3", "p03"]
    sexes = ["F", "f", "M"] * 20
    root = table_of(tmp_path / "small", patients, sex=sexes)
    entry = table_entry(columns=COLUMNS | {"subgroups": ["sex"]}, similar_names="keep")
    audit, page = audited(entry, root, tmp_path / "out")
    assert audit["spelled_alike"] == {
        "image_id": [],
        "group": [["P3", "p03", "p3"]],
        "sex": [["F", "f"]],
    }
    assert "`P3`, `p03`, `p3`" in page
    assert len([notice for notice in audit["notices"] if "leading zeros" in notice]) == 2
    assert read_manifest(tmp_path / "out/manifest.parquet").subgroups["sex"].nunique() == 3


def test_the_page_has_the_counts_by_part_and_the_near_pairs_with_theirs(
    table_entry: Entry, tmp_path: Path
) -> None:
    root = table_of(tmp_path / "small", [f"p{number // 2}" for number in range(60)])
    audit, page = audited(table_entry(columns=COLUMNS), root, tmp_path / "out")
    parts = audit["splits"]["0"]["parts"]
    counts = " / ".join(str(parts[p]["classes"]["a"]) for p in ("train", "calibration", "test"))
    assert f"| `a` | 30 | {counts} |" in page
    for pair in audit["duplicates"]["near"]["listed"]:
        one, other = pair["images"]
        parts_of_pair = " / ".join(pair["parts"]["0"])
        assert f"| `{one}` | `{other}` | {pair['bits']} | {parts_of_pair} |" in page
