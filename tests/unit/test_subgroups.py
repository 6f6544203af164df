"""Subgroups: planted gaps are found with their sign and size, absent ones are not; edges."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from crsbench.evaluation.cases import CellCases
from crsbench.metrics.calibration_error import multiclass_ece
from crsbench.studies.operating_points import Aim
from crsbench.studies.subgroups import (
    SubgroupSettings,
    equity,
    gap_of,
    in_bands,
    subgroup_gaps,
    subgroups,
    subgroups_of,
)
from worlds.cells import (
    CLASSES,
    SEPARATION,
    a_test_set,
    cell_of,
    drawn_cases,
    simulated_panel,
)

COLUMNS = ("sex", "age", "hospital")
SETTINGS = SubgroupSettings(COLUMNS, min_images=30, min_cases=10)
TARGETS = {"a": ["a"], "b": ["b"]}


def gaps_of(cell: CellCases, settings: SubgroupSettings = SETTINGS) -> pd.DataFrame:
    gaps = subgroups_of(cell, settings, TARGETS, Aim("sensitivity", 0.9)).gaps
    return subgroup_gaps.table(gaps).set_index(["column", "metric"])


def true_auroc(separation: float) -> float:
    truth, p = drawn_cases(np.random.default_rng(0), 40_000, separation)
    return float(roc_auc_score(truth, p[0], average="macro"))


def test_values_are_those_of_scikit_learn_on_the_groups_cases() -> None:
    cell = simulated_panel(1, 400, 0, 1)
    test = cell.tests["clean"]
    table = subgroups.table(subgroups_of(cell, SETTINGS).groups)
    assert set(table["metric"]) == {"auroc", "ece"}  # no threshold, no sensitivity
    for row in table.itertuples():
        rows = (test.subgroups[row.column] == row.group).to_numpy()
        truth, p = test.truth[rows], test.probabilities[0][rows]
        if row.metric == "auroc":
            assert row.value == pytest.approx(roc_auc_score(truth, p, average="macro"))
            assert row.n_classes == 3
        else:
            assert row.value == pytest.approx(multiclass_ece(truth, p))
        assert row.n_images == rows.sum()
        assert row.n_groups == len(set(test.groups[rows]))
        assert row.low < row.high
        assert row.low <= row.value  # an ECE is biased upwards, so the truth lies below


def test_a_planted_gap_is_found_with_its_sign_and_size() -> None:
    found = [gaps_of(simulated_panel(k, 1200, 0.5, 1)) for k in range(3)]
    truth = true_auroc(SEPARATION) - true_auroc(SEPARATION - 0.5)
    for gaps in found:
        gap = gaps.loc["sex", "auroc"]
        assert (gap["worst_group"], gap["best_group"], gap["found"]) == ("f", "m", True)
        assert gap["low"] - 0.02 < truth < gap["high"] + 0.02
    assert np.mean([gaps.loc["sex", "auroc"]["gap"] for gaps in found]) == pytest.approx(
        truth, abs=0.03
    )
    others = [gaps.loc[["age", "hospital"], "found"].mean() for gaps in found]
    assert np.mean(others) < 0.1


def test_a_planted_calibration_break_is_found_and_leaves_the_auroc_alone() -> None:
    gaps = gaps_of(simulated_panel(5, 2500, 0, 3.0))
    found = gaps.loc["age", "ece"]
    assert (found["worst_group"], found["found"]) == ("old", True)
    random = np.random.default_rng(0)
    truth, shown = drawn_cases(random, 40_000, SEPARATION, 3 * SEPARATION)
    assert found["gap"] == pytest.approx(multiclass_ece(truth, shown[0]), abs=0.04)
    assert not gaps.loc["age", "auroc"]["found"]


def test_where_nothing_is_planted_little_is_found() -> None:
    """40 panels of nine tests; benchmarks/subgroups.py does 200. At 5 %, 7 of 40 are unlikely."""
    alarms = [bool(gaps_of(simulated_panel(k, 400, 0, 1))["found"].any()) for k in range(40)]
    assert sum(alarms) <= 6


def test_few_patients_show_a_gap_that_chance_makes() -> None:
    gaps = gaps_of(simulated_panel(3, 160, 0, 1))
    auroc = gaps.loc["age", "auroc"]
    assert auroc["gap_by_chance"] > 0.05
    assert auroc["p"] > 0.05
    assert auroc["p_holm"] >= auroc["p"]


def test_small_groups_and_absent_values_are_named_and_left_out() -> None:
    random = np.random.default_rng(2)
    truth, p = drawn_cases(random, 200)
    sex = np.array(["f"] * 100 + ["m"] * 92 + ["x"] * 3 + [""] * 5)
    cell = cell_of({"clean": a_test_set(truth, p, {"sex": sex})}, [(truth, p[0])])
    rows = subgroups.table(subgroups_of(cell, SETTINGS).groups)
    left_out = rows[rows["metric"].isna()].set_index("group")
    assert left_out.loc["x", "missing"] == "fewer than 30 images"
    assert left_out.loc["x", "n_images"] == 3
    assert left_out.loc["", "missing"] == "not recorded"
    assert left_out.loc["", "n_images"] == 5
    assert set(rows.loc[rows["metric"] == "auroc", "group"]) == {"f", "m"}


def test_a_class_that_a_group_lacks_is_left_out_for_all_groups() -> None:
    random = np.random.default_rng(3)
    truth, p = drawn_cases(random, 300)
    group = np.where(truth[:, 2] == 1, "one", np.where(random.random(300) < 0.5, "one", "two"))
    test = a_test_set(truth, p, {"sex": group})
    one = subgroups_of(cell_of({"clean": test}, [(truth, p[0])]), SETTINGS)
    rows = subgroups.table(one.groups)
    auroc = rows[rows["metric"] == "auroc"].set_index("group")
    assert auroc["n_classes"].tolist() == [2, 2]
    here = group == "one"
    wanted = [roc_auc_score(truth[here, k], p[0][here, k]) for k in (0, 1)]
    assert auroc.loc["one", "value"] == pytest.approx(np.mean(wanted))


def test_a_group_of_one_class_gives_a_reason() -> None:
    truth = np.eye(3, dtype=np.int8)[np.repeat([0, 1], 60)]
    _, p = drawn_cases(np.random.default_rng(4), 120)
    sex = np.repeat(["f", "m"], 60)
    cell = cell_of({"clean": a_test_set(truth, p, {"sex": sex})}, [(truth, p[0])])
    one = subgroups_of(cell, SETTINGS, TARGETS, Aim("sensitivity", 0.9))
    gaps = subgroup_gaps.table(one.gaps).set_index("metric")
    assert gaps.loc["auroc", "missing"].startswith("no class has 10 positive and negative cases")
    assert gaps.loc["sensitivity", "missing"].startswith("no target has 10 positive cases")
    assert pd.isna(gaps.loc["auroc", "found"])
    assert gaps.loc["ece", "gap"] >= 0
    assert one.equity["missing"] == "no column has two groups that can be compared"


def test_unknown_labels_do_not_count() -> None:
    random = np.random.default_rng(5)
    truth = (random.random((300, 2)) < 0.4).astype(np.int8)
    p = np.clip(0.3 + 0.4 * truth + 0.2 * random.normal(size=truth.shape), 0, 1).astype(np.float32)
    hidden = random.random(truth.shape) < 0.2
    masked = np.where(hidden, -1, truth).astype(np.int8)
    sex = np.array(["f", "m"])[random.integers(0, 2, 300)]
    labels = ("x", "y")
    test = a_test_set(masked, p[None], {"sex": sex}, classes=labels)
    cell = cell_of({"clean": test}, [(masked, p)], task="multilabel", classes=labels)
    rows = subgroups.table(subgroups_of(cell, SETTINGS).groups).set_index(["group", "metric"])
    here = sex == "f"
    wanted = [
        roc_auc_score(truth[here & ~hidden[:, k], k], p[here & ~hidden[:, k], k]) for k in (0, 1)
    ]
    assert rows.loc[("f", "auroc"), "value"] == pytest.approx(np.mean(wanted))


def test_numbers_fall_in_bands_and_names_stay() -> None:
    values = ["0", "39.9", "40", "59", "60", "101", "", "18-39", "-1"]
    wanted = ["0-39", "0-39", "40-59", "40-59", "60+", "60+", "", "18-39", ""]
    assert in_bands(values, [40, 60]).tolist() == wanted


def test_equity_is_the_worst_groups_retention() -> None:
    cell = simulated_panel(2, 1500, 0.8, 1)
    one = subgroups_of(cell, SETTINGS)
    found = equity.table([one.equity]).iloc[0]
    test = cell.tests["clean"]
    women = (test.subgroups["sex"] == "f").to_numpy()
    ours = [
        roc_auc_score(test.truth[rows], test.probabilities[0][rows], average="macro")
        for rows in (women, np.ones(len(women), bool))
    ]
    assert (found["column"], found["group"]) == ("sex", "f")
    assert found["equity"] == pytest.approx(ours[0] / ours[1])
    assert found["low"] < found["equity"] < found["high"] < found["equity_by_chance"] < 1


def test_groups_of_equal_ages_do_not_differ_by_their_ages() -> None:
    """The old are harder, and one hospital has more of them: matched by age, it is no worse."""
    random = np.random.default_rng(6)
    n = 4000
    north = random.random(n) < 0.5
    old = random.random(n) < np.where(north, 0.8, 0.2)
    truth, p = drawn_cases(random, n, np.where(old, 0.5, 2.0))
    columns = {
        "hospital": np.where(north, "north", "south"),
        "age": np.where(old, "70", "30"),
    }
    cell = cell_of({"clean": a_test_set(truth, p, columns)}, [(truth, p[0])])
    plain = SubgroupSettings(("hospital",), {"age": [60]}, 30, 10)
    matched = SubgroupSettings(("hospital",), {"age": [60]}, 30, 10, match=("age",))
    as_they_are = gaps_of(cell, plain).loc["hospital", "auroc"]
    alike = gaps_of(cell, matched).loc["hospital", "auroc"]
    assert as_they_are["found"]
    assert as_they_are["gap"] > 0.1
    assert not alike["found"]
    assert alike["gap"] < 0.03
    rows = subgroups.table(subgroups_of(cell, matched).groups)
    assert (rows["matched_share"] == 1).all()


def test_a_gap_without_spread_or_values() -> None:
    equal = np.full((2, 101), 0.8)
    found = gap_of(["f", "m"], equal, high_is_worse=False)
    assert (found["gap"], found["p"], found["gap_by_chance"]) == (0, 1, 0)
    undefined = equal.copy()
    undefined[1, 1:20] = np.nan
    assert "too few cases" in gap_of(["f", "m"], undefined, False)["missing"]


def test_shift_targets_have_subgroups_of_their_own() -> None:
    random = np.random.default_rng(7)
    truth, p = drawn_cases(random, 200)
    sex = np.array(["f", "m"])[random.integers(0, 2, 200)]
    home = a_test_set(truth, p, {"sex": sex})
    elsewhere = a_test_set(truth, p, {"view": np.where(sex == "f", "AP", "PA")})
    cell = cell_of(
        {"clean": home, "jpeg-1": home, "far": elsewhere}, [(truth, p[0])], targets=("far",)
    )
    rows = subgroups.table(subgroups_of(cell, SubgroupSettings(("sex", "view"), {}, 30, 10)).groups)
    assert set(zip(rows["condition"], rows["column"], strict=True)) == {
        ("clean", "sex"),
        ("far", "view"),
    }
    assert cell.classes == CLASSES
