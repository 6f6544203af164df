"""Calibration: reliability diagrams, and the calibration errors that are read off them."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crsbench.metrics.arrays import (
    FloatArray,
    IntArray,
    Task,
    paired,
    require_binary,
    require_unit_interval,
)

N_BINS = 15
"""Bins of every calibration error (the published choice)."""


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

        Two cases at 0.9 of which one holds, and two at 0.1 of which none does:
        2/4 · |0.5 − 0.9| + 2/4 · |0 − 0.1| = 0.25.

        >>> float(reliability_bins([0.9, 0.9, 0.1, 0.1], [1, 0, 0, 0]).error())
        0.25
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

        Two cases at ½: 0, 1 or 2 of them hold with probability ¼, ½, ¼, so that the accuracy is
        off by ½, 0 or ½, a quarter on average.

        >>> round(float(reliability_bins([0.5, 0.5], [1, 0]).error_if_calibrated()), 12)
        0.25
        """
        # Σ_b n_b / n · E|X_b − n_b p_b| / n_b = Σ_b E|X_b − n_b p_b| / n.
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
    m = min(int(n * p), n - 1)  # ⌊np⌋; rounding may bring n p up to n
    # E|X − np| = 2 (m + 1) C(n, m + 1) p^(m + 1) (1 − p)^(n − m), the powers by their logarithms;
    # ln C(n, m + 1) = ln Γ(n + 1) − ln Γ(m + 2) − ln Γ(n − m).
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

    Of two bins, ½ is in the lower one:

    >>> bins = reliability_bins([0.25, 0.5, 1.0], [0, 1, 1], n_bins=2)
    >>> bins.count.tolist(), bins.mean_confidence.tolist(), bins.accuracy.tolist()
    ([2, 1], [0.375, 1.0], [0.5, 1.0])
    """
    confidence, correct = _sorted_columns(confidence, correct, n_bins)
    return _histogram(equal_width_bin(confidence, n_bins), confidence, correct, n_bins)


def equal_width_bin(confidence: FloatArray, n_bins: int = N_BINS) -> IntArray:
    """The bin, 0 to n_bins − 1, of each confidence in [0, 1]; see :func:`reliability_bins`."""
    # The number of inner edges b / n_bins, b = 1 … n_bins − 1, that lie below the confidence.
    return np.searchsorted(np.arange(1, n_bins) / n_bins, confidence)


def equal_mass_bins(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> ReliabilityBins:
    """As :func:`reliability_bins`, with bins that hold equal numbers of cases.

    The case of rank r (0 … n − 1) goes to bin ⌊r · n_bins / n⌋. Equal confidences share the bin of
    the first of them, or else the result would depend on the order of the cases.

    Of four cases in two bins the ranks 0 and 1 make the first; the three that are equal have the
    rank of the first of them, 1:

    >>> equal_mass_bins([0.1, 0.2, 0.2, 0.2], [0, 0, 1, 1], n_bins=2).count.tolist()
    [4, 0]
    """
    confidence, correct = _sorted_columns(confidence, correct, n_bins)
    n = len(confidence)
    ranks = np.arange(n).reshape(-1, *[1] * (confidence.ndim - 1))
    opens_tie = np.ones(confidence.shape, dtype=bool)
    opens_tie[1:] = confidence[1:] != confidence[:-1]
    first_rank = np.maximum.accumulate(np.where(opens_tie, ranks, 0), axis=0)
    # ⌊r · n_bins / n⌋ in integers
    return _histogram(first_rank * n_bins // n, confidence, correct, n_bins)


def expected_calibration_error(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """Expected calibration error of one (n,) series, over :func:`reliability_bins`.

    Four cases at 0.75 of which all hold: |1 − 0.75|.

    >>> expected_calibration_error([0.75] * 4, [1] * 4)
    0.25
    """
    return float(reliability_bins(confidence, correct, n_bins).error())


def top_label(truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> tuple[FloatArray, IntArray]:
    """Confidence of the most probable class and whether it is right, both (n,).

    Of equally probable classes the first is the prediction.

    >>> confidence, correct = top_label([[0, 1], [1, 0]], [[0.2, 0.8], [0.4, 0.6]])
    >>> confidence.tolist(), correct.tolist()
    ([0.8, 0.6], [1, 0])
    """
    truth, probabilities = paired(truth, probabilities)
    predicted = probabilities.argmax(axis=1)
    cases = np.arange(len(predicted))
    return probabilities[cases, predicted], truth[cases, predicted]


def multiclass_ece(
    truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """ECE of the top label: its confidence against its accuracy (Guo et al., ICML 2017).

    The two cases predict at 0.75 in one bin, and one of them is right: |½ − ¾|.

    >>> multiclass_ece([[1, 0], [1, 0]], [[0.75, 0.25], [0.25, 0.75]])
    0.25
    """
    return expected_calibration_error(*top_label(truth, probabilities), n_bins)


def classwise_ece(
    truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """Mean over all K classes of the ECE of each class's probability against its frequency.

    For a multi-class task this is the class-wise ECE of Kull et al. (NeurIPS 2019). For a
    multi-label task it is also the ECE of the protocol: for each label, then the mean over labels.
    A class absent from the test set counts: its frequency is zero, which its probabilities should
    say.

    The second class is predicted at ¼ and never holds, the first at ¾ and always does:

    >>> classwise_ece([[1, 0], [1, 0]], [[0.75, 0.25], [0.75, 0.25]])
    0.25
    """
    return float(reliability_bins(probabilities, truth, n_bins).error().mean())


def adaptive_ece(
    task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike, n_bins: int = N_BINS
) -> float:
    """ECE of the task with :func:`equal_mass_bins` (Nguyen and O'Connor, EMNLP 2015).

    Multi-class: of the top label. Multi-label: for each label, then the mean.

    In one bin of all cases a label has mean probability ½ and frequency ¼:

    >>> adaptive_ece("multilabel", [[1], [0], [0], [0]], [[0.8], [0.6], [0.4], [0.2]], n_bins=1)
    0.25
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

    As they are the two cases make |1 − ½| + |0 − ½| cancel in their common bin; the first drawn
    twice leaves |½ + ½| / 2.

    >>> resampled_calibration_error([0.5, 0.5], [1, 0], [[1, 1], [2, 0]]).tolist()
    [0.0, 0.5]
    """
    confidence = np.asarray(confidence, dtype=np.float64)
    correct = np.asarray(correct, dtype=np.float64)
    weights = np.asarray(weights, dtype=np.float64)
    # gaps (n, n_bins): correct_i − p_i in the column of the case's bin, so that weights @ gaps is
    # Σ_{i in b} w_i (correct_i − p_i), (r, n_bins).
    gaps = np.zeros((len(confidence), n_bins))
    gaps[np.arange(len(confidence)), equal_width_bin(confidence, n_bins)] = correct - confidence
    with np.errstate(invalid="ignore"):  # 0 / 0 without cases is the NaN we want
        error: FloatArray = np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)
    return error


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
    require_binary("correct", correct)
    require_unit_interval(confidence)
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
    # Of each bin n_b, Σ p_i, Σ correct_i; mean confidence Σ p_i / n_b, accuracy Σ correct_i / n_b
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin is the NaN we want
        return ReliabilityBins(count, total / count, hits / count)
