"""The bootstrap over test cases: against scikit-learn on the same draws, and at its edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from crsbench.core.errors import UserError
from crsbench.core.files import write_table
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.predictions import read_predictions, read_test_set
from crsbench.metrics.statistics import group_bootstrap
from crsbench.studies.case_bootstrap import CASE_COLUMNS, PAIR_COLUMNS, case_bootstrap
from worlds.cells import some_cases

if TYPE_CHECKING:
    from crsbench.evaluation.cases import TestedCases


def predicted(n: int = 90, seeds: int = 2, **quality: float) -> dict[str, TestedCases]:
    """Patients with two images each; an encoder's probabilities follow the truth by its quality."""
    random = np.random.default_rng(4)
    truth = np.eye(3, dtype=np.int8)[random.integers(0, 3, n)]
    groups = np.array([f"p{i // 2:03d}" for i in range(n)])
    tested = {}
    for name, strength in quality.items():
        logits = strength * truth + random.normal(size=(seeds, n, 3))
        raised = np.exp(logits)
        probabilities = (raised / raised.sum(axis=2, keepdims=True)).astype(np.float32)
        tested[name] = some_cases(truth, probabilities, groups=groups)
    return tested


def test_intervals_are_those_of_scikit_learn_on_the_same_draws() -> None:
    test_set = predicted(good=2.0, poor=0.5)
    table, pairs = case_bootstrap(test_set, "d", "clean", replicates=40)

    # The same draws, taken as they are: the statistic is how often each case occurs.
    drawn = group_bootstrap(
        test_set["good"].groups, lambda w: w.astype(float), "cases of d under clean", replicates=40
    ).values
    aurocs = {
        name: [
            np.mean(
                [
                    roc_auc_score(cases.truth[:, k], one[:, k], sample_weight=weights)
                    for one in cases.probabilities
                    for k in range(3)
                ]
            )
            for weights in drawn
        ]
        for name, cases in test_set.items()
    }
    for row in table.itertuples():
        expected = np.quantile(aurocs[row.encoder], [0.025, 0.975])
        assert [row.low, row.high] == pytest.approx(expected, abs=1e-12)
        assert row.se == pytest.approx(np.std(aurocs[row.encoder]))
        assert (row.n_cases, row.n_groups, row.n_redrawn) == (90, 45, 0)
    difference = np.subtract(aurocs["good"], aurocs["poor"])
    pair = pairs.iloc[0]
    assert [pair["low"], pair["high"]] == pytest.approx(np.quantile(difference, [0.025, 0.975]))
    assert (pair["encoder_a"], pair["encoder_b"]) == ("good", "poor")
    assert pair["separated"]


def test_the_estimate_is_the_mean_over_seeds_of_the_whole_test_set() -> None:
    test_set = predicted(only=1.0)
    cases, pairs = case_bootstrap(test_set, "d", "clean", replicates=20)
    expected = np.mean(
        [
            roc_auc_score(test_set["only"].truth, one, average="macro")
            for one in test_set["only"].probabilities
        ]
    )
    assert cases["macro_auroc"].tolist() == pytest.approx([expected], abs=1e-12)
    assert pairs.empty
    assert list(pairs) == PAIR_COLUMNS


def test_equal_encoders_differ_by_exactly_nothing() -> None:
    test_set = predicted(a=1.0)
    _, pairs = case_bootstrap(dict.fromkeys("ab", test_set["a"]), "d", "clean", replicates=30)
    assert pairs[["difference", "low", "high"]].to_numpy().tolist() == [[0, 0, 0]]
    assert not pairs["separated"].any()


def test_a_resample_of_one_class_is_drawn_anew_and_counted() -> None:
    test_set = predicted(n=12, a=1.0)
    truth = np.zeros((12, 3), dtype=np.int8)
    truth[:, 0] = 1
    truth[:2] = [0, 1, 0]  # one patient of the second class, none of the third
    cases, _ = case_bootstrap({"a": replace(test_set["a"], truth=truth)}, "d", "clean", 50)
    # A draw of six patients misses the one with probability (5/6)^6 = 0.335.
    row = cases.iloc[0]
    assert 0.335 * 50 / 2 < row["n_redrawn"] < 0.335 * 50 / 0.665 * 2
    assert 0 <= row["low"] <= row["high"] <= 1


def test_classes_too_rare_to_resample_give_a_reason_and_no_interval() -> None:
    """Eleven labels of one patient each: almost no draw of the patients has all of them."""
    n, labels = 24, 11
    truth = np.zeros((n, labels), dtype=np.int8)
    for k in range(labels):
        truth[2 * k, k] = 1
    groups = np.array([f"p{i // 2:02d}" for i in range(n)])
    random = np.random.default_rng(0)
    predictions = random.random((1, n, labels)).astype(np.float32)
    tested = {"a": some_cases(truth, predictions, "abcdefghijk", groups=groups)}
    cases, pairs = case_bootstrap(tested, "d", "clean", 50)
    assert cases["macro_auroc"].notna().all()
    assert cases[["low", "high", "se"]].isna().all().all()
    assert "too few groups for the bootstrap" in cases["missing"].iloc[0]
    assert list(cases) == CASE_COLUMNS
    assert pairs.empty


def test_the_draw_depends_on_the_test_set_alone() -> None:
    """An encoder's interval is the same whoever stands beside it."""
    both = predicted(a=1.0, b=2.0)
    alone = {"a": both["a"]}
    together, _ = case_bootstrap(both, "d", "clean", 30)
    single, _ = case_bootstrap(alone, "d", "clean", 30)
    pd.testing.assert_frame_equal(together.iloc[:1], single, check_exact=True)
    widths = [case_bootstrap(predicted(n=n, a=1.0), "d", "clean", 60)[0] for n in (40, 160, 640)]
    spans = [float((cases["high"] - cases["low"]).iloc[0]) for cases in widths]
    assert all(wide > narrow for wide, narrow in pairwise(spans))  # more cases, surer


# --- kept predictions as a test set ---------------------------------------------------------------


def write_manifest_of(folder: Path, classes: list[str]) -> Path:
    """Five images of three patients; image i has every class whose place divides i."""
    ids = [f"i{i}" for i in range(5)]
    frame = pd.DataFrame({"image_id": ids, "path": ids, "content_sha256": ids, "dropped": False})
    frame["group"] = ["p0", "p0", "p1", "p2", "p2"]
    frame["labels"] = [[int(i % (k + 1) == 0) for k in range(len(classes))] for i in range(5)]
    metadata = {"dataset": "t", "task": "multilabel", "classes": classes, "group_namespace": "t"}
    write_table(folder / "manifest.parquet", frame, metadata)
    return folder / "manifest.parquet"


def write_kept(file: Path, images: list[int], classes: list[str]) -> Path:
    """Logits that name their image and class: image i, class k has i / 10 + k / 100."""
    table = pd.DataFrame({"condition": "t", "image_id": [f"i{i}" for i in images]})
    for k, name in enumerate(classes):
        table[f"logit_{name}"] = [i / 10 + k / 100 for i in images]
    write_table(file, table, {"classes": classes, "task": "multilabel", "floors": {}})
    return file


def test_a_test_set_is_what_all_seeds_saw_of_the_classes_that_it_has(tmp_path: Path) -> None:
    manifest = write_manifest_of(tmp_path, ["c", "a"])  # "b" is unknown there
    files = {
        "one": [
            write_kept(tmp_path / "0.parquet", [0, 1, 2, 4], ["a", "b", "c"]),
            write_kept(tmp_path / "1.parquet", [1, 2, 3, 4], ["a", "b", "c"]),
        ]
    }
    test_set = read_test_set(read_manifest(manifest), "t", files)["one"]
    assert test_set.groups.tolist() == ["p0", "p1", "p2"]  # images 1, 2 and 4
    assert test_set.truth.tolist() == [[0, 1], [1, 1], [1, 1]]  # columns a and c
    logits = np.array([[0.1, 0.12], [0.2, 0.22], [0.4, 0.42]])
    assert test_set.ranking == pytest.approx(np.stack([logits, logits]), abs=1e-15)
    assert test_set.probabilities == pytest.approx(1 / (1 + np.exp(-test_set.ranking)), abs=1e-15)


def test_kept_probabilities_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    manifest = read_manifest(write_manifest_of(tmp_path, ["a"]))
    table = pd.DataFrame({"condition": "t", "image_id": ["i0"], "p_a": np.float32([0.5])})
    write_table(tmp_path / "old.parquet", table, {"classes": ["a"], "task": "multilabel"})
    with pytest.raises(UserError, match=r"old\.parquet .* p_a, not .*--forcerun kept_predictions"):
        read_predictions(tmp_path / "old.parquet", {"t": manifest})


def test_an_absent_condition_or_image_is_reported(tmp_path: Path) -> None:
    manifest = read_manifest(write_manifest_of(tmp_path, ["a"]))
    kept = write_kept(tmp_path / "0.parquet", [0, 7], ["a"])
    with pytest.raises(UserError, match="no predictions under 'clean'; it has t"):
        read_predictions(kept, {"clean": manifest})
    with pytest.raises(UserError, match="images that the manifest of 't' lacks"):
        read_test_set(manifest, "t", {"one": [kept]})
