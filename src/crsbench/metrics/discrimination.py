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
    aurocs = [_auroc(labels.astype(np.uint64), column) for labels, column in pairs]
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


def _auroc(labels: npt.NDArray[np.uint64], scores: FloatArray) -> float:
    """(#{positive above negative} + ½ #{positive tied with negative}) / (P N); both (n,)."""
    n_positive = int(labels.sum())
    n_negative = labels.size - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    if scores.min() < 0:  # ranks in place of the scores: the AUROC depends on nothing else
        scores = np.unique(scores, return_inverse=True)[1].astype(np.float64)
    # The bits of non-negative floats sort as the floats do and leave the sign bit free, so score
    # and label fit one integer, and one sort orders the scores and, within ties, the labels.
    # The shift drops that bit, so a negative zero equals the positive one.
    keys = (scores.view(np.uint64) << np.uint64(1)) | labels
    keys.sort()
    positive = (keys & np.uint64(1)).astype(np.int64)
    positions = np.arange(keys.size)
    # The j-th positive (j = 0, 1, …) stands at position_j, after position_j − j negatives:
    # above = Σ_j position_j − P (P − 1) / 2, with the negatives of its own tie counted whole.
    above = int(positive @ positions) - n_positive * (n_positive - 1) // 2
    changes = (keys[1:] ^ keys[:-1]) > 1  # they differ in more than the label's bit: not tied
    tied = 0
    if not changes.all():
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        sizes = np.diff(starts, append=keys.size)
        positives = np.add.reduceat(positive, starts)
        tied = int(positives @ (sizes - positives))  # Σ_g P_g N_g, all counted as above
    # (above − tied + ½ tied) / (P N), in integers until the division.
    return (2 * above - tied) / (2 * n_positive * n_negative)


def mean_defined(values: FloatArray) -> float:
    """Mean of the finite values; NaN if there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if defined.size else float("nan")
