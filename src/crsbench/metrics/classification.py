"""The metrics of a run: discrimination and calibration of predicted probabilities.

Pure functions on NumPy arrays. Throughout, ``truth`` is an (n, K) array of 0 and 1 (one-hot for a
multi-class task, any pattern for a multi-label one) and ``probabilities`` the (n, K) array of
predictions, where n counts test cases and K classes or labels. Where a function says so, truth may
also be ``UNKNOWN`` (−1): nobody knows whether the label holds, so the case does not count for it.

Every function gives the same bits whatever the order of the cases: counts are integers, and
floating-point numbers are put in ascending order before they are added up.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Task = Literal["multiclass", "multilabel"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

N_BINS = 15
"""Bins of every calibration error (the published choice)."""

ROW_SUM_TOLERANCE = 1e-3
"""How far a multi-class row may be from one: what a float16 round trip can do to it."""

UNKNOWN = -1
"""The truth of a label of which nobody knows whether it holds."""

LOG_LOSS_FLOOR = float(np.finfo(np.float64).eps)
"""Probabilities are clipped to [floor, 1 − floor] in the log-loss, as scikit-learn does."""


# --- discrimination ------------------------------------------------------------------------------


def auroc_per_class(truth: npt.ArrayLike, scores: npt.ArrayLike) -> FloatArray:
    """One-vs-rest area under the ROC curve of each class, ties exact (each counts one half).

    The area is the Mann-Whitney statistic: the share of (positive, negative) pairs in which the
    positive case scores higher (Hanley and McNeil, Radiology 1982). It is counted in integers.

    Args:
        truth: (n, K) of 0, 1 and ``UNKNOWN``.
        scores: (n, K), any real scores that rise with the class; infinities rank as usual.

    Returns:
        (K,); NaN where the class has no known positive or no known negative case.

    Raises:
        ValueError: the shapes differ, ``truth`` is not 0/1, or a score is NaN.
    """
    truth, scores = _paired(truth, scores, or_unknown=True)
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN")
    pairs = list(zip(truth.T.copy(order="C"), scores.T.copy(order="C"), strict=True))
    if (truth == UNKNOWN).any():
        known = [labels != UNKNOWN for labels, _ in pairs]
        pairs = [(pair[0][of], pair[1][of]) for pair, of in zip(pairs, known, strict=True)]
    aurocs = [_auroc(labels.astype(np.uint64), column) for labels, column in pairs]
    return np.array(aurocs, dtype=np.float64)


def macro_auroc(truth: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Mean of :func:`auroc_per_class` over the classes where it is defined; NaN if none is."""
    return _mean_defined(auroc_per_class(truth, scores))


def resampled_auroc(
    truth: npt.ArrayLike, scores: npt.ArrayLike, weights: npt.ArrayLike
) -> FloatArray:
    """One-vs-rest AUROC of each class in resamples of the test cases, ties exact.

    Args:
        truth: (n, K) of 0, 1 and ``UNKNOWN``.
        scores: (n, K).
        weights: (r, n), how often each case occurs in each resample; floats may be fractions.

    Returns:
        (r, K); NaN where a class has no known positive or no known negative case.
    """
    truth, scores = _paired(truth, scores, or_unknown=True)
    weights = np.asarray(weights)
    if not np.issubdtype(weights.dtype, np.floating):
        weights = weights.astype(np.int64)
    result = np.empty((len(weights), truth.shape[1]))
    for k, (labels, column) in enumerate(zip(truth.T, scores.T, strict=True)):
        order = np.argsort(column)
        ordered = column[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        drawn = weights[:, order]
        positive = np.add.reduceat(drawn * (labels[order] == 1), starts, axis=1)
        negative = np.add.reduceat(drawn * (labels[order] == 0), starts, axis=1)
        # Twice the negatives below each group of tied scores, plus those in it, which count half.
        twice_below = 2 * np.cumsum(negative, axis=1) - negative
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        with np.errstate(invalid="ignore"):  # 0 / 0 without one of the two is the NaN we want
            result[:, k] = (positive * twice_below).sum(axis=1) / (2 * pairs)
    return result


def _auroc(labels: npt.NDArray[np.uint64], scores: FloatArray) -> float:
    n_positive = int(labels.sum())
    n_negative = labels.size - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    if scores.min() < 0:
        scores = np.unique(scores, return_inverse=True)[1].astype(np.float64)
    # The bits of non-negative floats sort as the floats do and leave the sign bit free, so score
    # and label fit one integer, and one sort orders the scores and, within ties, the labels.
    # The shift drops that bit, so a negative zero equals the positive one.
    keys = (scores.view(np.uint64) << np.uint64(1)) | labels
    keys.sort()
    positive = (keys & np.uint64(1)).astype(np.int64)
    positions = np.arange(keys.size)
    # Negatives sorted before each positive: its position less the positives before it.
    above = int(positive @ positions) - n_positive * (n_positive - 1) // 2
    changes = (keys[1:] ^ keys[:-1]) > 1
    tied = 0
    if not changes.all():
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        sizes = np.diff(starts, append=keys.size)
        positives = np.add.reduceat(positive, starts)
        tied = int(positives @ (sizes - positives))
    return (2 * above - tied) / (2 * n_positive * n_negative)


# --- calibration ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """What a reliability diagram shows; the arrays are (n_bins,), or (K, n_bins) for K labels."""

    count: IntArray
    mean_confidence: FloatArray
    """NaN in an empty bin."""
    accuracy: FloatArray
    """Observed frequency in the bin; NaN in an empty one."""

    def error(self) -> FloatArray:
        """Calibration error Σ_b n_b / n · |accuracy_b − mean confidence_b|; a scalar array or (K,).

        An empty bin weighs nothing.
        """
        gap = np.where(self.count > 0, np.abs(self.accuracy - self.mean_confidence), 0.0)
        return np.asarray((self.count * gap).sum(axis=-1) / self.count.sum(axis=-1))

    def error_if_calibrated(self) -> FloatArray:
        """The error that as many cases show on average if they are perfectly calibrated.

        Chance alone gives n cases an error above zero. A bin of n_b cases at the confidence p
        deviates by E|X − n_b p| / n_b, where X is binomial; that mean absolute deviation has the
        closed form 2 (m + 1) C(n_b, m + 1) p^(m + 1) (1 − p)^(n_b − m), m = ⌊n_b p⌋ (de Moivre,
        1730). All cases of a bin are taken at its mean confidence, which overstates the level by a
        few percent of itself at most.
        """
        deviation = [
            _binomial_deviation(int(n), float(p))
            for n, p in zip(self.count.ravel(), self.mean_confidence.ravel(), strict=True)
        ]
        total = np.reshape(deviation, self.count.shape).sum(axis=-1)
        return np.asarray(total / self.count.sum(axis=-1))


def _binomial_deviation(n: int, p: float) -> float:
    """E|X − np| of a binomial X; 0 for n = 0 and for p = 0 or 1."""
    if n == 0 or not 0.0 < p < 1.0:
        return 0.0
    m = min(int(n * p), n - 1)
    log_choose = math.lgamma(n + 1) - math.lgamma(m + 2) - math.lgamma(n - m)
    return 2 * (m + 1) * math.exp(log_choose + (m + 1) * math.log(p) + (n - m) * math.log1p(-p))


def reliability_bins(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> ReliabilityBins:
    """Histogram of confidence against outcome in equal-width bins on [0, 1].

    Bin b is (b / n_bins, (b + 1) / n_bins], as in Guo et al. (ICML 2017), and the first one holds
    0 too: p = 0 falls in the first bin, p = 1 in the last, and each inner edge in the bin below
    it. An edge is the correctly rounded quotient, so a p of 3/5 sits exactly on the edge 9/15.

    Args:
        confidence: (n,) in [0, 1], or (n, K) for one histogram per column.
        correct: the same shape, 0 or 1: was the prediction right, or did the label hold.
        n_bins: number of bins, at least 1.

    Raises:
        ValueError: shapes differ, no cases, ``correct`` not 0/1, a confidence outside [0, 1].
    """
    confidence, correct = _sorted_columns(confidence, correct, n_bins)
    return _histogram(equal_width_bin(confidence, n_bins), confidence, correct, n_bins)


def equal_width_bin(confidence: FloatArray, n_bins: int = N_BINS) -> IntArray:
    """The bin, 0 to n_bins − 1, of each confidence in [0, 1]; see :func:`reliability_bins`."""
    return np.searchsorted(np.arange(1, n_bins) / n_bins, confidence)


def equal_mass_bins(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> ReliabilityBins:
    """As :func:`reliability_bins`, with bins that hold equal numbers of cases.

    The case of rank r (0 … n − 1) goes to bin ⌊r · n_bins / n⌋. Equal confidences share the bin of
    the first of them, or else the result would depend on the order of the cases.
    """
    confidence, correct = _sorted_columns(confidence, correct, n_bins)
    n = len(confidence)
    ranks = np.arange(n).reshape(-1, *[1] * (confidence.ndim - 1))
    opens_tie = np.ones(confidence.shape, dtype=bool)
    opens_tie[1:] = confidence[1:] != confidence[:-1]
    first_rank = np.maximum.accumulate(np.where(opens_tie, ranks, 0), axis=0)
    return _histogram(first_rank * n_bins // n, confidence, correct, n_bins)


def expected_calibration_error(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """Expected calibration error of one (n,) series, over :func:`reliability_bins`."""
    return float(reliability_bins(confidence, correct, n_bins).error())


def top_label(truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> tuple[FloatArray, IntArray]:
    """Confidence of the most probable class and whether it is right, both (n,).

    Of equally probable classes the first is the prediction.
    """
    truth, probabilities = _paired(truth, probabilities)
    predicted = probabilities.argmax(axis=1)
    cases = np.arange(len(predicted))
    return probabilities[cases, predicted], truth[cases, predicted]


def multiclass_ece(
    truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """ECE of the top label: its confidence against its accuracy (Guo et al., ICML 2017)."""
    return expected_calibration_error(*top_label(truth, probabilities), n_bins)


def classwise_ece(
    truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """Mean over all K classes of the ECE of each class's probability against its frequency.

    For a multi-class task this is the class-wise ECE of Kull et al. (NeurIPS 2019). For a
    multi-label task it is also the ECE of the protocol: for each label, then the mean over labels.
    A class absent from the test set counts: its frequency is zero, which its probabilities should
    say.
    """
    return float(reliability_bins(probabilities, truth, n_bins).error().mean())


def adaptive_ece(
    task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """ECE of the task with :func:`equal_mass_bins` (Nguyen and O'Connor, EMNLP 2015).

    Multi-class: of the top label. Multi-label: for each label, then the mean.
    """
    if task == "multiclass":
        return float(equal_mass_bins(*top_label(truth, probabilities), n_bins).error())
    return float(equal_mass_bins(probabilities, truth, n_bins).error().mean())


def resampled_calibration_error(
    confidence: npt.ArrayLike,
    correct: npt.ArrayLike,
    weights: npt.ArrayLike,
    n_bins: int = N_BINS,
) -> FloatArray:
    """:func:`expected_calibration_error` in resamples of the test cases, empty bins weigh nothing.

    Σ_b n_b / n · |accuracy_b − mean confidence_b| is Σ_b |Σ_{i in b} w_i (correct_i − p_i)| / Σ w.

    Args:
        confidence, correct: (n,).
        weights: (r, n), how often each case occurs in each resample.

    Returns:
        (r,); NaN for a resample without cases.
    """
    confidence = np.asarray(confidence, dtype=np.float64)
    correct = np.asarray(correct, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    bins = np.searchsorted(np.arange(1, n_bins) / n_bins, confidence)
    gaps = np.zeros((len(confidence), n_bins))
    gaps[np.arange(len(confidence)), bins] = correct - confidence
    with np.errstate(invalid="ignore"):  # 0 / 0 without cases is the NaN we want
        return np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


# --- proper scores -------------------------------------------------------------------------------


def brier_score(task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Brier score, 0 is best.

    Multi-class: mean over cases of Σ_k (p_k − y_k)², from 0 to 2 (Brier, 1950; twice the usual
    binary score when K = 2). Multi-label: the binary score (p − y)² of each label, from 0 to 1,
    then the mean over labels.
    """
    truth, probabilities = _paired(truth, probabilities)
    squared = np.square(probabilities - truth)
    return _mean_in_order(squared.sum(axis=1) if task == "multiclass" else squared.ravel())


def log_loss(task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Negative log-likelihood in nats, probabilities clipped to [ε, 1 − ε], ε = 2⁻⁵² ≈ 2.2e-16.

    Multi-class: mean over cases of −ln p of the true class. Multi-label: the binary log-loss of
    each label, then the mean over labels. One case predicted at 0 that happens costs 36 nats.
    """
    truth, probabilities = _paired(truth, probabilities)
    likelihood = np.where(truth == 1, probabilities, 1.0 - probabilities)
    if task == "multiclass":
        likelihood = likelihood[truth == 1]
    return _mean_in_order(-np.log(np.clip(likelihood.ravel(), LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR)))


# --- a whole run ---------------------------------------------------------------------------------


def renormalised(probabilities: npt.ArrayLike) -> FloatArray:
    """Probabilities (n, K) of some of a probe's classes, given that one of these is true.

    Each row is divided by its sum. A row that gave them no probability at all says nothing of
    which it is, and becomes uniform.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    mass = probabilities.sum(axis=1, keepdims=True)
    uniform = np.full_like(probabilities, 1.0 / probabilities.shape[1])
    return np.divide(probabilities, mass, out=uniform, where=mass > 0)


_SCALARS = (
    "macro_auroc",
    "macro_auroc_core",
    "ece",
    "ece_if_calibrated",
    "classwise_ece",
    "adaptive_ece",
    "brier",
    "log_loss",
    "n_test",
    "n_classes",
    "n_classes_defined",
)


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
        scalars = {name: getattr(self, name) for name in _SCALARS}
        return scalars | {
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
        macro_auroc=_mean_defined(auroc) if defined.any() else None,
        macro_auroc_core=_mean_defined(core)
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
    defined = [name for name in classes if auroc[name] is not None]
    core = [auroc[name] for name in defined if name not in excluded_classes]

    def mean(metric: str) -> float:
        return float(np.mean([getattr(part, metric) for part in parts.values()]))

    return RunMetrics(
        macro_auroc=_mean_of(auroc[name] for name in defined),
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
        undefined_classes=tuple(name for name in classes if auroc[name] is None),
        auroc=auroc,
        reliability={name: part.reliability[name] for name, part in parts.items()},
    )


# --- helpers -------------------------------------------------------------------------------------


def _mean_of(values: Iterable[float]) -> float | None:
    """Plain mean; None of nothing."""
    values = list(values)
    return float(np.mean(values)) if values else None


def _paired(
    truth: npt.ArrayLike, values: npt.ArrayLike, *, or_unknown: bool = False
) -> tuple[IntArray, FloatArray]:
    """Both as (n, K) C-ordered arrays of int64 and float64."""
    truth = np.asarray(truth)
    values = np.ascontiguousarray(values, dtype=np.float64)
    if truth.ndim != 2 or truth.shape != values.shape:
        raise ValueError(
            f"truth and predictions must both be (n, K), got {truth.shape} and {values.shape}"
        )
    _require_binary("truth", np.where(truth == UNKNOWN, 0, truth) if or_unknown else truth)
    return np.ascontiguousarray(truth, dtype=np.int64), values


def _require_binary(name: str, values: npt.NDArray[Any]) -> None:
    if values.dtype != bool and not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must hold only 0 and 1")


def _require_unit_interval(values: FloatArray) -> None:
    # Written so that NaN fails too.
    if not ((values >= 0.0) & (values <= 1.0)).all():
        if not np.isfinite(values).all():
            raise ValueError("probabilities must be finite, found NaN or infinity")
        raise ValueError(
            f"probabilities must lie in [0, 1], found {values.min():g} to {values.max():g}"
        )


def _checked(
    task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike, classes: Sequence[str]
) -> tuple[IntArray, FloatArray]:
    if task not in ("multiclass", "multilabel"):
        raise ValueError(f"task must be 'multiclass' or 'multilabel', got {task!r}")
    truth, probabilities = _paired(truth, probabilities)
    n, n_columns = truth.shape
    if n == 0:
        raise ValueError("a run needs at least one test case, got none")
    if len(classes) != n_columns or len(set(classes)) != n_columns:
        raise ValueError(
            f"classes must be {n_columns} different names, one per column, got {list(classes)}"
        )
    _require_unit_interval(probabilities)
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


def _sorted_columns(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int
) -> tuple[FloatArray, IntArray]:
    """Each column by ascending confidence, so that sums do not depend on the order of the cases."""
    confidence = np.asarray(confidence, dtype=np.float64)
    correct = np.asarray(correct)
    if confidence.shape != correct.shape or confidence.ndim not in (1, 2):
        raise ValueError(
            "confidence and correct must have one shape, (n,) or (n, K), "
            f"got {confidence.shape} and {correct.shape}"
        )
    if confidence.size == 0:
        raise ValueError("calibration needs at least one case, got none")
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    _require_binary("correct", correct)
    _require_unit_interval(confidence)
    order = np.argsort(confidence, axis=0)
    return (
        np.take_along_axis(confidence, order, axis=0),
        np.take_along_axis(correct.astype(np.int64), order, axis=0),
    )


def _histogram(
    bins: IntArray, confidence: FloatArray, correct: IntArray, n_bins: int
) -> ReliabilityBins:
    """Sums per bin, all columns at once: column k uses the bins k · n_bins and up."""
    n_columns = confidence.shape[1] if confidence.ndim == 2 else 1
    index = bins.ravel()
    if n_columns > 1:
        index = (bins + np.arange(n_columns) * n_bins).ravel()
    shape = (*confidence.shape[1:], n_bins)
    count, total, hits = (
        np.bincount(index, weights, minlength=n_columns * n_bins).reshape(shape)
        for weights in (None, confidence.ravel(), correct.ravel())
    )
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin is the NaN we want
        return ReliabilityBins(count, total / count, hits / count)


def _mean_in_order(values: FloatArray) -> float:
    return float(np.sort(values).mean())


def _mean_defined(values: FloatArray) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")


def _none_for_nan(values: FloatArray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
