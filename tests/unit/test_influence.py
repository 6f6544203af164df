"""Influence values are the derivatives of the metrics by the cases' weights."""

from __future__ import annotations

import numpy as np
import pytest

from crsbench.metrics.arrays import UNKNOWN
from crsbench.metrics.calibration_error import multiclass_ece, resampled_calibration_error
from crsbench.metrics.discrimination import auroc_per_class, macro_auroc, resampled_auroc
from crsbench.metrics.influence import (
    auroc_influence,
    ece_influence,
    macro_auroc_influence,
    run_ece_influence,
)

STEP = 1e-6


def labels_and_scores(n: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(n)
    truth = (random.random((n, 3)) < [0.5, 0.2, 0.1]).astype(int)
    scores = random.normal(size=(n, 3)) + truth
    return truth, np.round(scores, 0 if ties else 9)


@pytest.mark.parametrize("ties", [False, True])
def test_the_influence_on_auroc_is_its_derivative(ties: bool) -> None:
    truth, scores = labels_and_scores(60, ties)
    auroc, influence = auroc_influence(truth, scores)
    np.testing.assert_allclose(auroc, auroc_per_class(truth, scores), rtol=0, atol=1e-12)
    np.testing.assert_allclose(influence.sum(axis=0), 0, atol=1e-9)
    weights = np.ones((60, 60)) + STEP * np.eye(60)
    moved = resampled_auroc(truth, scores, weights)
    np.testing.assert_allclose((moved - auroc) * 60 / STEP, influence, atol=1e-4)


def test_unknown_cases_have_none_and_undefined_classes_are_left_out() -> None:
    truth, scores = labels_and_scores(40, False)
    truth[:5, 0], truth[:, 2] = UNKNOWN, 0
    auroc, influence = auroc_influence(truth, scores)
    assert np.isnan(auroc[2])
    assert not influence[:, 2].any()
    assert not influence[:5, 0].any()
    value, of_macro = macro_auroc_influence(truth, scores)
    assert value == pytest.approx(macro_auroc(truth, scores), abs=1e-12)
    weights = np.ones((40, 40)) + STEP * np.eye(40)
    moved = resampled_auroc(truth, scores, weights)[:, :2].mean(axis=1)
    np.testing.assert_allclose((moved - value) * 40 / STEP, of_macro, atol=1e-4)


def test_no_class_is_defined() -> None:
    value, influence = macro_auroc_influence(np.ones((3, 2)), np.zeros((3, 2)))
    assert np.isnan(value)
    assert influence.tolist() == [0, 0, 0]


def test_the_influence_on_ece_is_its_derivative() -> None:
    random = np.random.default_rng(0)
    confidence = np.concatenate([random.random(60), [0, 1, 1, 0]])
    correct = (random.random(64) < confidence**2).astype(int)
    value, influence = ece_influence(confidence, correct)
    weights = np.ones((65, 64))
    weights[1:] += STEP * np.eye(64)
    moved = resampled_calibration_error(confidence, correct, weights)
    assert value == pytest.approx(moved[0], abs=1e-12)
    np.testing.assert_allclose((moved[1:] - value) * 64 / STEP, influence, atol=1e-4)


def test_a_run_of_either_task() -> None:
    random = np.random.default_rng(1)
    raw = random.random((50, 3)) + 0.1
    probabilities = raw / raw.sum(axis=1, keepdims=True)
    one_hot = np.eye(3, dtype=int)[random.integers(0, 3, 50)]
    value, influence = run_ece_influence("multiclass", one_hot, probabilities)
    assert value == pytest.approx(multiclass_ece(one_hot, probabilities), abs=1e-12)
    assert influence.sum() == pytest.approx(0, abs=1e-9)
    truth = (random.random((50, 3)) < 0.3).astype(int)
    truth[:7, 1], truth[:, 2] = UNKNOWN, UNKNOWN
    value, influence = run_ece_influence("multilabel", truth, probabilities)
    of_labels = [
        ece_influence(probabilities[known, k], truth[known, k])[0]
        for k in range(2)
        for known in [truth[:, k] != UNKNOWN]
    ]
    assert value == pytest.approx(np.mean(of_labels), abs=1e-12)
    assert influence.sum() == pytest.approx(0, abs=1e-9)


def test_the_spread_of_resamples_is_that_of_recounting() -> None:
    truth, scores = labels_and_scores(300, False)
    random = np.random.default_rng(2)
    weights = random.multinomial(300, np.full(300, 1 / 300), size=2000).astype(float)
    counted = resampled_auroc(truth, scores, weights)
    auroc, influence = auroc_influence(truth, scores)
    linear = auroc + (weights - 1) @ influence / 300
    np.testing.assert_allclose(linear.std(axis=0), counted.std(axis=0), rtol=0.05)
    assert np.corrcoef(linear[:, 0], counted[:, 0])[0, 1] > 0.99
