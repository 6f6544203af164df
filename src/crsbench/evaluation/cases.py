"""Tested cases: labels, groups, and what a model says of each case. All metrics are made of them.

They are made in three places, each with `TestedCases.of` or its constructor: from features and a
probe (`crsbench.evaluation.runs`), from kept predictions (`crsbench.evaluation.predictions`), from
a user's table (`crsbench.calibration.external_predictions`). From there on all is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from crsbench.data.manifest import Manifest
from crsbench.metrics.arrays import UNKNOWN, FloatArray, Task
from crsbench.metrics.run_metrics import RunMetrics, renormalised, run_metrics


@dataclass(frozen=True, eq=False)
class TestedCases:
    """n cases, and what a model of K classes says of them.

    classes: names of the S judged classes, those that the cases are labelled for; shared: (S,)
    their columns among the model's K, ascending; image_ids, groups: (n,) str; truth: (n, S) of 0,
    1 and `UNKNOWN`; given: (n, K) probabilities as the model gave them, or (seeds, n, K) of one
    model a seed; scores: of the same shape, what AUROCs rank by in place of `given`: of a probe its
    log-odds, which do not saturate.

    Of a test set that is resampled also subgroups: n rows of further columns; weights: (1 + R, n),
    how often each case occurs in the test set itself (the first row, all ones) and in R resamples
    of whole groups.
    """

    task: Task
    classes: tuple[str, ...]
    shared: np.ndarray
    image_ids: np.ndarray
    groups: np.ndarray
    truth: np.ndarray
    given: np.ndarray
    scores: np.ndarray | None = None
    subgroups: pd.DataFrame = field(default_factory=pd.DataFrame)
    weights: FloatArray = field(default_factory=lambda: np.ones((1, 0)))

    @classmethod
    def of(
        cls,
        task: Task,
        classes: Sequence[str],
        tested: Manifest,
        rows: np.ndarray,
        given: np.ndarray,
        scores: np.ndarray | None = None,
    ) -> TestedCases:
        """Label what a model of the K `classes` says of some rows (mask or places) of a manifest.

        Judged are the classes that the model and the manifest share, in the model's order.
        """
        shared = [k for k, name in enumerate(classes) if name in tested.classes]
        judged = tuple(classes[k] for k in shared)
        truth = tested.truth[rows][:, [tested.classes.index(name) for name in judged]]
        cases = tested.image_ids[rows], tested.groups[rows], truth, given, scores
        return cls(task, judged, np.array(shared, dtype=np.int64), *cases)

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def known(self) -> np.ndarray:
        """(n, S): whether it is known if the label holds."""
        return self.truth != UNKNOWN

    @property
    def probabilities(self) -> np.ndarray:
        """(…, n, S) of the judged classes, as the model gave them."""
        return self._judged(self.given)

    @property
    def ranking(self) -> np.ndarray:
        """(…, n, S) what AUROCs of the judged classes rank by: scores, else probabilities."""
        return self._judged(self.given if self.scores is None else self.scores)

    def confidences(self) -> FloatArray:
        """(…, n, S) float64: probabilities that are fit for a judgement of their calibration.

        Of a multi-class model with some of its classes judged: given that one of them is true.
        """
        if self.task == "multiclass" and self.given.shape[-1] > len(self.shared):
            return renormalised(self.probabilities)
        return np.asarray(self.probabilities, dtype=np.float64)

    def metrics(self, excluded_classes: Sequence[str] = ()) -> RunMetrics:
        """The metrics of one model; AUROCs rank by the `ranking`, not by the `confidences`.

        excluded_classes: as for `crsbench.metrics.run_metrics.run_metrics`.
        """
        return run_metrics(
            self.task,
            self.truth,
            self.confidences(),
            self.classes,
            excluded_classes=excluded_classes,
            scores=self.ranking,
        )

    def _judged(self, values: np.ndarray) -> np.ndarray:
        """The columns (…, n, S) of the judged classes among (…, n, K)."""
        return values if values.shape[-1] == len(self.shared) else values[..., self.shared]

    def take(self, rows: np.ndarray) -> TestedCases:
        """The cases of some rows (mask or places), without subgroups and weights."""
        return TestedCases(
            self.task,
            self.classes,
            self.shared,
            self.image_ids[rows],
            self.groups[rows],
            self.truth[rows],
            self.given[..., rows, :],
            None if self.scores is None else self.scores[..., rows, :],
        )

    def of_judged_classes(self) -> TestedCases:
        """The same cases as if the model had no classes but the judged ones.

        Labels of a multi-label task keep their scores; the shares of a multi-class one rank anew.
        """
        judged = np.arange(len(self.classes))
        keeps = self.scores is not None and self.task == "multilabel"
        scores = self.ranking if keeps else None
        return replace(self, given=self.confidences(), shared=judged, scores=scores)


def in_common(sets: Sequence[TestedCases]) -> list[TestedCases]:
    """Of sets of cases that are sorted by image the images that all of them have."""
    ids = sets[0].image_ids
    for one in sets[1:]:
        if not np.array_equal(one.image_ids, ids):
            ids = ids[np.isin(ids, one.image_ids)]
    return [
        one if len(one) == len(ids) else one.take(np.searchsorted(one.image_ids, ids))
        for one in sets
    ]


def of_seeds(sets: Sequence[TestedCases]) -> TestedCases:
    """One set of the cases that every seed has, with what each seed says of them.

    Seeds share the test set, but a shift target may lack, for a seed, the patients it trained on.
    """
    sets = in_common(sets)
    scores = [one.scores for one in sets if one.scores is not None]
    return replace(
        sets[0],
        given=np.stack([one.given for one in sets]),
        scores=np.stack(scores) if scores else None,
    )


@dataclass(frozen=True, eq=False)
class CellCases:
    """The cases of an encoder on a data set: calibration sets by seed, test sets by condition.

    A test set holds what all seeds say of it; `classes` are those of the data set, which the
    calibration sets are all labelled for.
    """

    encoder: str
    dataset: str
    task: Task
    classes: tuple[str, ...]
    calibration: Sequence[TestedCases]
    tests: Mapping[str, TestedCases]
    targets: frozenset[str]

    @property
    def undegraded(self) -> list[str]:
        """The conditions whose images are as they were taken: clean and the shift targets."""
        return [name for name in self.tests if name == "clean" or name in self.targets]
