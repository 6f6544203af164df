"""All metrics of a run, from its predictions on the test set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crsbench.metrics.arrays import (
    ROW_SUM_TOLERANCE,
    UNKNOWN,
    FloatArray,
    IntArray,
    Task,
    paired,
    require_unit_interval,
)
from crsbench.metrics.calibration_error import (
    ReliabilityBins,
    adaptive_ece,
    reliability_bins,
    top_label,
)
from crsbench.metrics.discrimination import auroc_per_class, mean_defined
from crsbench.metrics.proper_scores import brier_score, log_loss


def renormalised(probabilities: npt.ArrayLike) -> FloatArray:
    """Probabilities (…, K) of some of a probe's classes, given that one of these is true.

    Each row is divided by its sum. A row that gave them no probability at all says nothing of
    which it is, and becomes uniform.

    >>> renormalised([[0.125, 0.375], [0.0, 0.0]]).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    mass = probabilities.sum(axis=-1, keepdims=True)
    uniform = np.full_like(probabilities, 1.0 / probabilities.shape[-1])
    # p_k / Σ_j p_j, and 1 / K where the sum is 0
    shares: FloatArray = np.divide(probabilities, mass, out=uniform, where=mass > 0)
    return shares


@dataclass(frozen=True, eq=False)
class RunMetrics:
    """All metrics of one run."""

    macro_auroc: float | None
    """None when no class has both positive and negative test cases."""
    macro_auroc_core: float | None
    """The same without the excluded classes; None when there are none, or no class is left."""
    ece: float
    ece_if_calibrated: float
    """The mean ECE of as many cases, at the same confidences, that are perfectly calibrated."""
    classwise_ece: float
    adaptive_ece: float
    brier: float
    log_loss: float
    n_test: int
    n_classes: int
    n_classes_defined: int
    """Classes that enter the macro-AUROC."""
    undefined_classes: tuple[str, ...]
    """Classes left out of the macro-AUROC: absent from the test set, or the only one in it."""
    auroc: dict[str, float | None]
    """One-vs-rest AUROC by class name, in the order of the classes."""
    reliability: dict[str, ReliabilityBins]
    """Multi-class: one histogram, ``top_label``. Multi-label: one per label name."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain types, without NaN: an undefined value is ``None``."""
        return vars(self) | {
            "undefined_classes": list(self.undefined_classes),
            "auroc": dict(self.auroc),
            "reliability": {
                name: {
                    "count": bins.count.tolist(),
                    "mean_confidence": _none_for_nan(bins.mean_confidence),
                    "accuracy": _none_for_nan(bins.accuracy),
                }
                for name, bins in self.reliability.items()
            },
        }


def run_metrics(
    task: Task,
    truth: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    classes: Sequence[str],
    *,
    excluded_classes: Sequence[str] = (),
    scores: npt.ArrayLike | None = None,
) -> RunMetrics:
    """All metrics of a run from its test predictions.

    With a truth that is ``UNKNOWN`` in places every label is judged over its known cases, then the
    mean is taken over the labels that have any; the others have no AUROC and no reliability bins.

    Args:
        task: ``multiclass`` (truth one-hot, rows of probabilities sum to one) or ``multilabel``.
        truth: (n, K) of 0 and 1, for a multi-label task also ``UNKNOWN``.
        probabilities: (n, K) in [0, 1].
        classes: the K names, in the order of the columns.
        excluded_classes: those that ``macro_auroc_core`` leaves out; other names have no effect.
        scores: (n, K), what the AUROC ranks by instead of the probabilities.

    Raises:
        ValueError: no test cases, or none of known truth; shapes or names that do not fit, a truth
            that is not 0/1 (or not one-hot), a probability that is not finite or outside [0, 1],
            or a multi-class row that is further than ``ROW_SUM_TOLERANCE`` from one.

    >>> truth, probabilities = [[1, 0], [0, 1]], [[0.75, 0.25], [0.25, 0.75]]
    >>> metrics = run_metrics("multiclass", truth, probabilities, ["healthy", "ill"])
    >>> metrics.macro_auroc, metrics.ece, metrics.brier
    (1.0, 0.25, 0.125)
    """
    unknown = np.asarray(truth) == UNKNOWN
    if task == "multilabel" and unknown.any():
        truth, probabilities = _checked(task, np.where(unknown, 0, truth), probabilities, classes)
        return _metrics_of_known(~unknown, truth, probabilities, classes, excluded_classes, scores)
    truth, probabilities = _checked(task, truth, probabilities, classes)
    auroc = auroc_per_class(truth, probabilities if scores is None else scores)
    defined = np.isfinite(auroc)
    core = auroc[[name not in excluded_classes for name in classes]]
    per_label = reliability_bins(probabilities, truth)
    classwise = float(per_label.error().mean())
    if task == "multiclass":
        bins = reliability_bins(*top_label(truth, probabilities))
        reliability = {"top_label": bins}
        ece, by_chance = float(bins.error()), float(bins.error_if_calibrated())
    else:
        reliability = {
            name: ReliabilityBins(*columns)
            for name, *columns in zip(
                classes,
                per_label.count,
                per_label.mean_confidence,
                per_label.accuracy,
                strict=True,
            )
        }
        ece, by_chance = classwise, float(per_label.error_if_calibrated().mean())
    return RunMetrics(
        macro_auroc=mean_defined(auroc) if defined.any() else None,
        macro_auroc_core=mean_defined(core)
        if excluded_classes and np.isfinite(core).any()
        else None,
        ece=ece,
        ece_if_calibrated=by_chance,
        classwise_ece=classwise,
        adaptive_ece=adaptive_ece(task, truth, probabilities),
        brier=brier_score(task, truth, probabilities),
        log_loss=log_loss(task, truth, probabilities),
        n_test=len(truth),
        n_classes=len(classes),
        n_classes_defined=int(defined.sum()),
        undefined_classes=tuple(
            name for name, known in zip(classes, defined, strict=True) if not known
        ),
        auroc=dict(zip(classes, _none_for_nan(auroc), strict=True)),
        reliability=reliability,
    )


def _metrics_of_known(
    known: npt.NDArray[np.bool_],
    truth: IntArray,
    probabilities: FloatArray,
    classes: Sequence[str],
    excluded_classes: Sequence[str],
    scores: npt.ArrayLike | None,
) -> RunMetrics:
    """Multi-label metrics, each label over its known cases (n, K), then the mean over labels."""
    scores = probabilities if scores is None else np.asarray(scores)
    parts = {}
    for k, name in enumerate(classes):
        rows = known[:, k]
        if rows.any():
            columns = truth[rows, k, None], probabilities[rows, k, None]
            parts[name] = run_metrics("multilabel", *columns, [name], scores=scores[rows, k, None])
    if not parts:
        raise ValueError("a run needs at least one test case of known truth, got none")
    auroc = {name: parts[name].macro_auroc if name in parts else None for name in classes}
    defined = {name: value for name, value in auroc.items() if value is not None}
    core = [value for name, value in defined.items() if name not in excluded_classes]

    def mean(metric: str) -> float:
        return float(np.mean([getattr(part, metric) for part in parts.values()]))

    return RunMetrics(
        macro_auroc=_mean_of(defined.values()),
        macro_auroc_core=_mean_of(core) if excluded_classes else None,
        ece=mean("ece"),
        ece_if_calibrated=mean("ece_if_calibrated"),
        classwise_ece=mean("classwise_ece"),
        adaptive_ece=mean("adaptive_ece"),
        brier=mean("brier"),
        log_loss=mean("log_loss"),
        n_test=len(truth),
        n_classes=len(classes),
        n_classes_defined=len(defined),
        undefined_classes=tuple(name for name in classes if name not in defined),
        auroc=auroc,
        reliability={name: part.reliability[name] for name, part in parts.items()},
    )


def _mean_of(values: Iterable[float]) -> float | None:
    """Plain mean; None of nothing."""
    values = list(values)
    return float(np.mean(values)) if values else None


def _checked(
    task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike, classes: Sequence[str]
) -> tuple[IntArray, FloatArray]:
    """Truth and probabilities (n, K) of a run, once they fit each other, the names and the task."""
    if task not in ("multiclass", "multilabel"):
        raise ValueError(f"task must be 'multiclass' or 'multilabel', got {task!r}")
    truth, probabilities = paired(truth, probabilities)
    n, n_columns = truth.shape
    if n == 0:
        raise ValueError("a run needs at least one test case, got none")
    if len(classes) != n_columns or len(set(classes)) != n_columns:
        raise ValueError(
            f"classes must be {n_columns} different names, one per column, got {list(classes)}"
        )
    require_unit_interval(probabilities)
    if task == "multiclass":
        if (truth.sum(axis=1) != 1).any():
            raise ValueError("truth of a multi-class task must be one-hot: one 1 in every row")
        off = float(np.abs(probabilities.sum(axis=1) - 1.0).max())
        if off > ROW_SUM_TOLERANCE:
            raise ValueError(
                "multi-class probabilities must sum to one in every row "
                f"(within {ROW_SUM_TOLERANCE:g}), the worst row is off by {off:g}"
            )
    return truth, probabilities


def _none_for_nan(values: FloatArray) -> list[float | None]:
    """Plain numbers of (m,); NaN, the one value that differs from itself, becomes None."""
    return [None if value != value else value for value in values.tolist()]
