"""Discrimination: the area under the ROC curve, of a test set and of resamples of it."""

import numpy as np
import numpy.typing as npt

from crsbench.metrics.arrays import UNKNOWN, FloatArray, paired


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

    Of one class, the positives score 0.9 and 0.5, the negatives 0.5 and 0.1. Of the four pairs
    three are in order and one is tied: (3 + ½) / 4.

    >>> auroc_per_class([[1], [1], [0], [0]], [[0.9], [0.5], [0.5], [0.1]]).tolist()
    [0.875]
    """
    truth, scores = paired(truth, scores, or_unknown=True)
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN")
    pairs = list(zip(truth.T.copy(order="C"), scores.T.copy(order="C"), strict=True))
    if (truth == UNKNOWN).any():
        known = [labels != UNKNOWN for labels, _ in pairs]
        pairs = [(pair[0][of], pair[1][of]) for pair, of in zip(pairs, known, strict=True)]
    aurocs = [_auroc(labels == 1, column) for labels, column in pairs]
    return np.array(aurocs, dtype=np.float64)


def macro_auroc(truth: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Mean of :func:`auroc_per_class` over the classes where it is defined; NaN if none is.

    The first class has an AUROC of 1, the second no positive case:

    >>> macro_auroc([[1, 0], [0, 0]], [[0.9, 0.1], [0.2, 0.8]])
    1.0
    """
    return mean_defined(auroc_per_class(truth, scores))


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

    Drawn once each, the positive at 0.5 ties with one negative and beats the other: ¾. Without the
    tied negative it beats all.

    >>> truth, scores = [[1], [0], [0]], [[0.5], [0.5], [0.1]]
    >>> resampled_auroc(truth, scores, [[1, 1, 1], [1, 0, 2]]).tolist()
    [[0.75], [1.0]]
    """
    truth, scores = paired(truth, scores, or_unknown=True)
    weights = np.asarray(weights)
    if not np.issubdtype(weights.dtype, np.floating):
        weights = weights.astype(np.int64)
    result = np.empty((len(weights), truth.shape[1]))
    for k, (labels, column) in enumerate(zip(truth.T, scores.T, strict=True)):
        order = np.argsort(column)
        ordered = column[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        # P_g and N_g (r, groups): weights of the positives and the negatives at each score.
        drawn = weights[:, order]
        positive = np.add.reduceat(drawn * (labels[order] == 1), starts, axis=1)
        negative = np.add.reduceat(drawn * (labels[order] == 0), starts, axis=1)
        # 2 (N_1 + … + N_{g−1}) + N_g: twice the negatives below a group, and those in it for half.
        twice_below = 2 * np.cumsum(negative, axis=1) - negative
        # AUROC = Σ_g P_g (2 Σ_{h<g} N_h + N_g) / (2 P N).
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        with np.errstate(invalid="ignore"):  # 0 / 0 without one of the two is the NaN we want
            result[:, k] = (positive * twice_below).sum(axis=1) / (2 * pairs)
    return result


def _auroc(positive: npt.NDArray[np.bool_], scores: FloatArray) -> float:
    """(#{positive above negative} + ½ #{positive tied with negative}) / (P N); both (n,)."""
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    if not (above.size and below.size):
        return float("nan")
    # Of each positive the negatives that score less, and those that score no more: a tie is in one.
    less, no_more = (np.searchsorted(below, above, side) for side in ("left", "right"))
    return int(less.sum() + no_more.sum()) / (2 * above.size * below.size)


def mean_defined(values: FloatArray) -> float:
    """Mean of the finite values; NaN if there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")
