"""A user's own model: from a table of labels and probabilities, as docs/calibration.md says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crsbench.calibration import METHODS
from crsbench.calibration.calibrators import load_calibrator
from crsbench.calibration.external_predictions import (
    COLUMNS,
    ece_interval,
    read_external_table,
    recalibrate_external,
)
from crsbench.core.errors import UserError
from crsbench.core.files import read_table
from crsbench.metrics.calibration_error import multiclass_ece, reliability_bins

CLASSES = ("benign", "malignant", "other")


def class_table(n: int = 600, overconfidence: float = 3.0) -> pd.DataFrame:
    random = np.random.default_rng(2)
    logits = random.normal(size=(n, 3))

    def softmax(z: np.ndarray) -> np.ndarray:
        return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)

    drawn = (softmax(logits).cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(max=2)
    table = pd.DataFrame({"image_id": [f"i{row}" for row in range(n)]})
    table["label"] = np.array(CLASSES)[drawn]
    table["group"] = [f"p{row // 2}" for row in range(n)]
    table[[f"p_{name}" for name in CLASSES]] = softmax(overconfidence * logits)
    return table


def binary_table(n: int = 400) -> pd.DataFrame:
    random = np.random.default_rng(3)
    logits = random.normal(-1, 1, n)
    table = pd.DataFrame({"p_ill": 1 / (1 + np.exp(-3 * logits))})
    table["y_ill"] = (random.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
    table.loc[:4, "y_ill"] = np.nan  # unknown
    return table


def written(table: pd.DataFrame, folder: Path, name: str = "mine.csv") -> Path:
    file = folder / name
    table.to_csv(file, index=False) if name.endswith("csv") else table.to_parquet(file)
    return file


def made_of(table: pd.DataFrame, folder: Path, name: str = "mine.csv") -> pd.DataFrame:
    recalibrate_external(written(table, folder, name), folder / "out")
    return read_table(folder / "out" / "calibration.parquet")[0].set_index("method")


def test_an_overconfident_classifier_is_repaired_out_of_fold(tmp_path: Path) -> None:
    table = class_table()
    made = made_of(table, tmp_path)
    assert list(made.reset_index()) == COLUMNS
    assert list(made.index) == ["none", *METHODS]
    truth = (table["label"].to_numpy()[:, None] == np.array(CLASSES)).astype(int)
    before = multiclass_ece(truth, table[[f"p_{name}" for name in CLASSES]].to_numpy())
    assert made.loc["none", "ece"] == pytest.approx(before, abs=1e-9)
    assert (made.loc[list(METHODS), "ece"] < 0.6 * before).all()
    assert (made["ece_low"] <= made["ece"]).all()
    assert made.loc["none", "ece_low"] > made.loc["temperature", "ece"]
    assert made["recommended"].sum() == 1
    assert not made.loc["none", "recommended"]
    assert (made["judged_on"] == "out of fold").all()
    assert (made["n_cases"] == 600).all()


def test_the_recalibrated_versions_and_calibrators_are_kept(tmp_path: Path) -> None:
    made = made_of(class_table(), tmp_path, "mine.parquet")
    out = tmp_path / "out"
    versions, _ = read_table(out / "recalibrated.parquet")
    assert versions["method"].value_counts().to_dict() == dict.fromkeys(["none", *METHODS], 600)
    assert {"image_id", "label", "group"} <= set(versions)
    for name in METHODS:
        of = versions[versions["method"] == name]
        p = of[[f"p_{name}" for name in CLASSES]].to_numpy()
        truth = (of["label"].to_numpy()[:, None] == np.array(CLASSES)).astype(int)
        assert multiclass_ece(truth, p) == pytest.approx(made.loc[name, "ece"], abs=1e-12)
        kept = load_calibrator(out / f"{name}.json")
        again = kept.recalibrate(np.array([[0.9, 0.05, 0.05]]))
        assert 0.3 < again[0, 0] < 0.85  # less sure than it was
    assert (out / "reliability.svg").read_text("utf-8").startswith("<svg")


def test_a_part_column_keeps_test_cases_out_of_the_fit(tmp_path: Path) -> None:
    table = class_table()
    table["part"] = np.where(np.arange(600) < 300, "calibration", "test")
    made = made_of(table, tmp_path)
    assert (made["judged_on"] == "test cases").all()
    assert (made["n_cases"] == 300).all()
    calibrators = {name: (tmp_path / f"out/{name}.json").read_text() for name in METHODS}
    flipped = table.copy()
    flipped.loc[300:, "label"] = "benign"
    made_of(flipped, tmp_path)
    for name in METHODS:
        assert (tmp_path / f"out/{name}.json").read_text() == calibrators[name]


def test_a_binary_classifier_with_unknown_labels(tmp_path: Path) -> None:
    table = binary_table()
    made = made_of(table, tmp_path)
    known = table["y_ill"].notna()
    expected = reliability_bins(table.loc[known, "p_ill"], table.loc[known, "y_ill"]).error()
    assert made.loc["none", "ece"] == pytest.approx(float(expected), abs=1e-9)
    assert made.loc["temperature", "auroc_change"] == pytest.approx(0, abs=0.01)
    assert (made.loc[list(METHODS), "ece"] < made.loc["none", "ece"]).all()


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    table = class_table(200)
    for folder in ("one", "two"):
        recalibrate_external(written(table, tmp_path), tmp_path / folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


def test_the_interval_holds_the_ece_of_the_population() -> None:
    """Overconfident by 1.5: the population's ECE is that of a very large sample."""
    random = np.random.default_rng(8)

    def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
        logits = random.normal(0, 1.5, (n, 1))
        truth = (random.random((n, 1)) < 1 / (1 + np.exp(-logits))).astype(int)
        return truth, 1 / (1 + np.exp(-1.5 * logits))

    truth, p = sample(400_000)
    population = float(reliability_bins(p, truth).error()[0])
    hits = 0
    for _ in range(40):
        truth, p = sample(500)
        interval = ece_interval("multilabel", truth, p, np.arange(500))
        assert interval.low <= interval.high
        hits += interval.low <= population <= interval.high
    assert hits >= 34  # 95 % of 40 are 38


def test_groups_are_drawn_whole() -> None:
    """Ten copies of each case say no more than one: the interval is no narrower."""
    truth = (np.random.default_rng(0).random((60, 1)) < 0.4).astype(int)
    p = np.full((60, 1), 0.2)
    one = ece_interval("multilabel", truth, p, np.arange(60))
    copies = ece_interval(
        "multilabel", np.repeat(truth, 10, axis=0), np.repeat(p, 10, axis=0), np.arange(600) // 10
    )
    assert copies.estimate == pytest.approx(one.estimate)
    assert (copies.high - copies.low) == pytest.approx(one.high - one.low, rel=0.15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="label"), "must have either a column `label`"),
        (lambda t: t.assign(y_benign=1), "must have either a column `label`"),
        (lambda t: t.filter(["label"]), "has no column of probabilities"),
        (lambda t: t.assign(label="malignnat"), r"row 1 has the label 'malignnat'; allowed: ben"),
        (lambda t: t.assign(p_other=1.5), "row 1 has 1.5 in `p_other`; a probability from 0 to 1"),
        (lambda t: t.assign(p_other=None), "a probability from 0 to 1"),
        (lambda t: t.assign(p_other=0.0), "of row .* add up to .*; they must add up to 1"),
        (lambda t: t.assign(part="train"), "has the parts train in `part`; needed: calibration"),
        (lambda t: t.head(0), "has no rows"),
        (lambda t: t.assign(group="same"), "cross-validation needs two classes"),
        (lambda t: t.drop(columns=["p_other", "p_malignant"]), "give a column for every class"),
    ],
)
def test_a_table_that_does_not_fit_is_reported_in_one_sentence(
    change, message: str, tmp_path: Path
) -> None:
    file = written(change(class_table(40)), tmp_path)
    with pytest.raises(UserError, match=message):
        recalibrate_external(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_other_than_0_and_1_are_reported(tmp_path: Path) -> None:
    table = binary_table(30)
    table.loc[7, "y_ill"] = 2
    with pytest.raises(UserError, match=r"row 8 has 2\.0 in `y_ill`; allowed: 0, 1"):
        read_external_table(written(table, tmp_path))
    with pytest.raises(UserError, match="has `p_well` and no `y_well`"):
        read_external_table(written(binary_table(30).assign(p_well=0.5), tmp_path))
    with pytest.raises(UserError, match="has no known label"):
        read_external_table(written(binary_table(30).assign(y_ill=np.nan), tmp_path))
    with pytest.raises(UserError, match="can't be read as a table"):
        read_external_table(tmp_path / "absent.csv")
