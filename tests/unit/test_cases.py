"""Tested cases: which classes are judged, and what is computed of some of a model's classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from crsbench.data.manifest import Manifest
from crsbench.evaluation import cases as evaluation
from crsbench.metrics.discrimination import auroc_per_class
from crsbench.metrics.run_metrics import run_metrics
from worlds.cells import some_cases


def a_manifest(classes: str, truth: np.ndarray, task: str = "multiclass") -> Manifest:
    ids = np.array([f"i{i}" for i in range(len(truth))])
    groups = np.char.replace(ids, "i", "p")
    return Manifest(
        *("d", task, tuple(classes), "d", ids, ids, groups, truth.astype(np.int8), pd.DataFrame())
    )


def random_cases(n: int = 60, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return np.eye(2, dtype=np.int8)[random.integers(0, 2, n)], random.dirichlet(np.ones(k), n)


@pytest.mark.parametrize("rows", [np.array([1, 3]), np.array([False, True, False, True])])
def test_judged_are_the_shared_classes_in_the_models_order(rows: np.ndarray) -> None:
    tested = a_manifest("cax", np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    given = np.array([[0.1, 0.2, 0.7], [0.5, 0.2, 0.3]])
    cases = evaluation.TestedCases.of("multiclass", "abc", tested, rows, given)
    assert (cases.classes, cases.shared.tolist()) == (("a", "c"), [0, 2])
    assert cases.image_ids.tolist() == ["i1", "i3"]
    assert cases.groups.tolist() == ["p1", "p3"]
    assert cases.truth.tolist() == [[1, 0], [0, 1]]
    assert cases.probabilities.tolist() == [[0.1, 0.7], [0.5, 0.3]]
    assert cases.confidences() == pytest.approx(np.array([[1 / 8, 7 / 8], [5 / 8, 3 / 8]]))


def test_some_classes_are_ranked_as_given_and_calibrated_given_that_one_is_true() -> None:
    truth, given = random_cases()
    cases = some_cases(truth, given, "bd", shared=[1, 3])
    metrics = cases.metrics()
    judged = given[:, [1, 3]]
    assert list(metrics.auroc.values()) == auroc_per_class(truth, judged).tolist()
    shares = judged / judged.sum(axis=1, keepdims=True)
    assert metrics.ece == run_metrics("multiclass", truth, shares, "bd").ece
    # A model that has no other classes is ranked by these shares.
    alone = cases.of_judged_classes()
    assert np.array_equal(alone.probabilities, cases.confidences())
    assert alone.metrics().auroc == run_metrics("multiclass", truth, shares, "bd").auroc
    # The labels of a multi-label task do not exclude each other.
    labels = replace(cases, task="multilabel")
    assert np.array_equal(labels.confidences(), judged)


def test_scores_rank_in_place_of_the_probabilities_and_change_nothing_else() -> None:
    truth, given = random_cases()
    cases = some_cases(truth, given, "bd", shared=[1, 3])
    metrics = replace(cases, scores=-given).metrics()
    assert list(metrics.auroc.values()) == auroc_per_class(truth, -given[:, [1, 3]]).tolist()
    assert (metrics.ece, metrics.brier) == (cases.metrics().ece, cases.metrics().brier)


def test_seeds_are_taken_together_over_the_cases_that_all_have() -> None:
    truth, given = random_cases(6)
    whole = replace(some_cases(truth, given, "bd", shared=[1, 3]), scores=given + 1)
    first, second = whole.take(np.array([0, 1, 2, 4])), whole.take(np.arange(6) > 0)
    assert np.array_equal(first.scores, given[[0, 1, 2, 4]] + 1)
    both = evaluation.of_seeds([first, second])
    assert both.image_ids.tolist() == whole.image_ids[[1, 2, 4]].tolist()
    assert np.array_equal(both.truth, truth[[1, 2, 4]])
    assert np.array_equal(both.given, np.stack([given[[1, 2, 4]]] * 2))
    assert np.array_equal(both.scores, both.given + 1)
    assert np.array_equal(both.confidences()[1], whole.confidences()[[1, 2, 4]])
    assert np.array_equal(both.take(np.array([2])).given, both.given[:, [2]])
