"""How much each test case weighs on a metric: influence values, for resampling without recounting.

A statistic T of n cases has influence values φ_i if, with weights w_i in place of ones,

    T(w) ≈ T + 1/n Σ_i (w_i − 1) φ_i,    Σ_i φ_i = 0,

to first order. A bootstrap of T is then one matrix product for all replicates, whatever it costs to
count T itself (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 21 and 22).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from crsbench.metrics.arrays import UNKNOWN, FloatArray, Task, paired
from crsbench.metrics.calibration_error import N_BINS, equal_width_bin, top_label


def auroc_influence(truth: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """One-vs-rest AUROC of each class, and each case's influence on it, ties exact.

    With V10 of a positive case the share of negatives that it scores above (ties half), and V01 of
    a negative case the share of positives that score above it, AUROC = mean V10 = mean V01 and, of
    n cases with m positives,

        φ_i = n/m (V10_i − AUROC) of a positive, n/(n − m) (V01_i − AUROC) of a negative case

    (the structural components of DeLong, DeLong and Clarke-Pearson, Biometrics 1988).

    Args:
        truth: (n, K) of 0, 1 and ``UNKNOWN``; a case of unknown truth has no influence.
        scores: (n, K), any real scores that rise with the class.

    Returns:
        (K,) and (n, K); NaN and zeros where the class lacks known positives or known negatives.

    Raises:
        ValueError: as :func:`crsbench.metrics.discrimination.auroc_per_class`.

    >>> auroc, influence = auroc_influence([[1], [1], [0], [0]], [[3.0], [1.0], [2.0], [0.0]])
    >>> auroc, influence.ravel()
    (array([0.75]), array([ 0.5, -0.5, -0.5,  0.5]))
    """
    truth, scores = paired(truth, scores, or_unknown=True)
    n, n_classes = truth.shape
    auroc = np.full(n_classes, np.nan)
    influence = np.zeros((n, n_classes))
    for k in range(n_classes):
        positive, negative = truth[:, k] == 1, truth[:, k] == 0
        m, q = int(positive.sum()), int(negative.sum())
        if m == 0 or q == 0:
            continue
        known = truth[:, k] != UNKNOWN
        ranks = np.full(n, np.nan)
        ranks[known] = rankdata(scores[known, k])  # mid-ranks among all known cases
        # A case's rank less its rank among its own kind counts those of the other kind below it.
        v10 = (ranks[positive] - rankdata(scores[positive, k])) / q
        v01 = 1 - (ranks[negative] - rankdata(scores[negative, k])) / m
        auroc[k] = v10.mean()
        influence[positive, k] = n / m * (v10 - auroc[k])
        influence[negative, k] = n / q * (v01 - auroc[k])
    return auroc, influence


def macro_auroc_influence(truth: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[float, FloatArray]:
    """The macro-AUROC over the defined classes and the influence (n,) of each case on it.

    NaN and zeros where no class is defined.
    """
    auroc, influence = auroc_influence(truth, scores)
    defined = ~np.isnan(auroc)
    if not defined.any():
        return float("nan"), np.zeros(len(influence))
    return float(auroc[defined].mean()), influence[:, defined].mean(axis=1)


def ece_influence(
    confidence: npt.ArrayLike, correct: npt.ArrayLike, n_bins: int = N_BINS
) -> tuple[float, FloatArray]:
    """The expected calibration error of equal-width bins, and each case's influence (n,) on it.

    With g_b = Σ_{i in b} (correct_i − p_i), ECE(w) = Σ_b |Σ_{i in b} w_i (correct_i − p_i)| / Σ w,
    whose derivative at w = 1 gives φ_i = sign(g_b) (correct_i − p_i) − ECE. It is exact as long as
    no bin's gap changes its sign; where all gaps are near zero (good calibration, few cases) it
    overstates the spread.

    Args:
        confidence: (n,) in [0, 1].
        correct: (n,) of 0 and 1.

    >>> ece_influence([0.9, 0.9], [1, 0])
    (0.4, array([-0.5,  0.5]))
    """
    confidence = np.asarray(confidence, dtype=np.float64)
    gap = np.asarray(correct, dtype=np.float64) - confidence
    bins = equal_width_bin(confidence, n_bins)
    gaps = np.bincount(bins, gap, n_bins)  # g_b
    ece = float(np.abs(gaps).sum() / len(gap))
    return ece, np.sign(gaps)[bins] * gap - ece


def run_ece_influence(
    task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike
) -> tuple[float, FloatArray]:
    """A run's ECE (top label, or the mean over labels of known truth) and the influences (n,)."""
    truth, probabilities = paired(truth, probabilities, or_unknown=True)
    if task == "multiclass":
        return ece_influence(*top_label(truth, probabilities))
    parts = []
    influence = np.zeros(len(truth))
    for labels, column in zip(truth.T, probabilities.T, strict=True):
        known = labels != UNKNOWN
        if known.any():
            ece, of_known = ece_influence(column[known], labels[known])
            parts.append(ece)
            influence[known] += of_known * (len(truth) / known.sum())
    return float(np.mean(parts)), influence / len(parts)
