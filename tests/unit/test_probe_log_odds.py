"""Log-odds of a probe's decisions: against longdouble and scikit-learn, and where they saturate."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from crsbench.evaluation.cases import TestedCases
from crsbench.metrics.discrimination import auroc_per_class
from crsbench.probes.fitted import Decisions
from worlds.cells import some_cases

NO_FLOORS = np.array([], dtype=int), np.array([])


def by_definition(logits: np.ndarray) -> np.ndarray:
    """l_k less the logarithm of the sum of the others' exponentials, in longdouble."""
    logits = logits.astype(np.longdouble)
    scores = np.empty_like(logits)
    for k in range(logits.shape[1]):
        others = np.delete(logits, k, axis=1)
        highest = others.max(1)
        scores[:, k] = logits[:, k] - highest - np.log(np.exp(others - highest[:, None]).sum(1))
    return scores


def judged(task: str, truth: np.ndarray, logits: np.ndarray) -> TestedCases:
    decided = Decisions(task, logits, *NO_FLOORS)
    names = [f"c{k}" for k in range(truth.shape[1])]
    cases = some_cases(truth, decided.probabilities(), names)
    return TestedCases(
        task, cases.classes, cases.shared, cases.image_ids, cases.groups, truth, cases.given,
        decided.log_odds(),
    )  # fmt: skip


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("classes", [2, 3, 8])
def test_log_odds_are_those_of_the_definition(spread: float, classes: int) -> None:
    logits = spread * np.random.default_rng(classes).normal(size=(300, classes))
    found = Decisions("multiclass", logits, *NO_FLOORS).log_odds()
    assert np.isfinite(found).all()
    error = np.abs(found - by_definition(logits))
    assert (error <= 1e-14 * (1 + np.abs(logits).max(1, keepdims=True))).all()


def test_log_odds_of_level_and_of_far_logits() -> None:
    logits = np.array([[0.0, 0.0, 0.0], [7.0, 7.0, -1e30], [1e4, 0.0, 0.0], [-800.0, 0.0, -900.0]])
    found = Decisions("multiclass", logits, *NO_FLOORS).log_odds()
    assert found[0] == pytest.approx([-np.log(2)] * 3, rel=1e-15)
    assert found[1] == pytest.approx([0.0, 0.0, -1e30])
    assert found[2] == pytest.approx([1e4 - np.log(2), -1e4, -1e4])
    assert found[3] == pytest.approx([-800.0, 800.0, -900.0])


def test_log_odds_give_the_probabilities_where_these_do_not_saturate() -> None:
    logits = np.random.default_rng(0).normal(size=(200, 4))
    for task in ("multiclass", "multilabel"):
        decided = Decisions(task, logits, *NO_FLOORS)
        given = 1 / (1 + np.exp(-decided.log_odds()))
        assert given == pytest.approx(decided.probabilities(), rel=1e-13)


def test_certain_cases_keep_their_order() -> None:
    truth = np.array([1, 0, 0, 0])
    logits = np.array([50.0, 45.0, 40.0, -1.0])
    labels = judged("multilabel", truth[:, None].astype(np.int8), logits[:, None])
    assert (labels.probabilities[:3] == 1).all()
    assert labels.metrics().macro_auroc == 1.0
    both = np.stack([1 - truth, truth], axis=1).astype(np.int8)
    classes = judged("multiclass", both, np.stack([np.zeros(4), logits], axis=1))
    assert list(classes.metrics().auroc.values()) == [1.0, 1.0]


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_aurocs_of_saturated_cases_are_those_of_the_logits(task: str) -> None:
    random = np.random.default_rng(1)
    truth = np.eye(3, dtype=np.int8)[random.integers(0, 3, 400)]
    logits = 200 * random.normal(size=(400, 3)) + 100 * truth
    cases = judged(task, truth, logits)
    ranks = by_definition(logits) if task == "multiclass" else logits
    wanted = [roc_auc_score(truth[:, k], ranks[:, k].astype(float)) for k in range(3)]
    assert list(cases.metrics().auroc.values()) == pytest.approx(wanted, abs=1e-14)
    assert not np.allclose(auroc_per_class(truth, cases.probabilities), wanted, atol=1e-3)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_a_class_at_its_floor_ranks_nothing(task: str) -> None:
    random = np.random.default_rng(2)
    logits = random.normal(size=(50, 4))
    logits[:, 1] = -1e30
    decided = Decisions(task, logits, np.array([1]), np.array([0.02]))
    assert decided.log_odds()[:, 1] == pytest.approx([np.log(0.02 / 0.98)] * 50)
    assert (decided.probabilities()[:, 1] == 0.02).all()
    for k in (0, 2, 3):  # the others rank as their probabilities do
        order = np.argsort(decided.probabilities()[:, k])
        assert (np.diff(decided.log_odds()[order, k]) > 0).all()


def test_the_only_class_that_is_not_at_its_floor_ranks_nothing() -> None:
    floors = np.array([0, 2]), np.array([0.1, 0.1])
    decided = Decisions("multiclass", np.random.default_rng(3).normal(size=(5, 3)), *floors)
    assert np.isfinite(decided.log_odds()).all()
    assert (np.ptp(decided.log_odds(), axis=0) == 0).all()
