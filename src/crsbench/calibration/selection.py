"""Which calibrator to take: cross-validation inside the calibration set, never on test cases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from crsbench.calibration import NONE
from crsbench.calibration.calibrators import CALIBRATORS, INNER_FOLDS, Calibrator
from crsbench.metrics.arrays import UNKNOWN, FloatArray, Task
from crsbench.probes.folds import folds_per_problem


def fit_all(
    task: Task, probabilities: FloatArray, truth: npt.ArrayLike, groups: npt.ArrayLike | None = None
) -> dict[str, Calibrator]:
    """The four calibrators by name, fitted on (n, K) probabilities and truth."""
    return {
        name: calibrator(task).fit_probabilities(probabilities, truth, groups)
        for name, calibrator in CALIBRATORS.items()
    }


def out_of_fold(
    task: Task, probabilities: FloatArray, truth: npt.NDArray[np.integer], groups: npt.ArrayLike
) -> dict[str, FloatArray]:
    """What each calibrator says of cases that it was not fitted on, (n, K) by name.

    Folds keep groups whole and are stratified, each label of a multi-label task by itself. What no
    fold can hold out (a label within one group) stays as it was. ``none`` is among them.
    """
    known = truth != UNKNOWN
    fold, n_folds = folds_per_problem(
        np.maximum(truth, 0), known, np.asarray(groups), task, INNER_FOLDS
    )
    found = {name: probabilities.copy() for name in (NONE, *CALIBRATORS)}
    for held_out in range(n_folds.max()):
        test = np.broadcast_to(fold == held_out, truth.shape)
        for name, calibrator in _fit_without(test, task, probabilities, truth, groups).items():
            found[name][test] = calibrator.recalibrate(probabilities)[test]
    return found


def _fit_without(
    test: npt.NDArray[np.bool_],
    task: Task,
    probabilities: FloatArray,
    truth: npt.NDArray[np.integer],
    groups: npt.ArrayLike,
) -> dict[str, Calibrator]:
    """The calibrators of all but the cases of the mask `test` (n, K)."""
    if task == "multilabel":
        return fit_all(task, probabilities, np.where(test, UNKNOWN, truth), groups)
    rows = ~test[:, 0]
    return fit_all(task, probabilities[rows], truth[rows], np.asarray(groups)[rows])


def brier_by_method(
    task: Task, versions: Mapping[str, FloatArray], truth: npt.NDArray[np.integer]
) -> dict[str, float]:
    """Brier score of each version (n, K): multi-class a sum over classes, multi-label a mean over
    each label's known cases, then over the labels that have any.

    (0.75 − 1)² and (0.25 − 0)²: their sum, and their mean.

    >>> versions, truth = {"none": np.array([[0.75, 0.25]])}, np.array([[1, 0]])
    >>> brier_by_method("multiclass", versions, truth)
    {'none': 0.125}
    >>> brier_by_method("multilabel", versions, truth)
    {'none': 0.0625}
    """
    known = truth != UNKNOWN
    scores = {}
    for name, probabilities in versions.items():
        squared = np.where(known, np.square(probabilities - truth), 0.0).sum(axis=0)
        cases = known.sum(axis=0)
        # Σ_i (p_ik − y_ik)² / n_k of each column k, over its n_k known cases
        by_column = squared[cases > 0] / cases[cases > 0]
        scores[name] = float(by_column.sum() if task == "multiclass" else by_column.mean())
    return scores


def least(scores: Mapping[str, float]) -> str:
    """The name of the smallest score; of equal ones the first.

    >>> least({"none": 0.2, "temperature": 0.1, "vector": 0.1})
    'temperature'
    """
    return min(scores, key=lambda name: scores[name])
