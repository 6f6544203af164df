"""Statistics of the studies: ranks and their agreement, tests, intervals and resampling.

Thin over SciPy where it has the statistic. All functions refuse missing values: what to leave out
is for the caller to decide and to say.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which loads `scipy.stats` at its first use

from crsbench.core.hashing import sha256_number
from crsbench.metrics.arrays import FloatArray, IntArray

# --- ranks and their agreement -------------------------------------------------------------------


def competition_rank(values: npt.ArrayLike) -> FloatArray:
    """Ranks with 1 for the highest value; equal values share the best of their ranks (1, 2, 2, 4).

    Args:
        values: (…, n); ranked along the last axis. NaN gets no rank (NaN) and does not count.

    Returns:
        (…, n) ranks as floats.

    >>> competition_rank([0.5, 0.9, 0.5, 0.1]).tolist()
    [2.0, 1.0, 2.0, 4.0]
    """
    values = np.asarray(values, dtype=np.float64)
    # rank_i = 1 + #{j : x_j > x_i}; comparisons with NaN are false, so it counts for no one
    ranks = 1.0 + (values[..., None, :] > values[..., :, None]).sum(axis=-1)
    return np.where(np.isnan(values), np.nan, ranks)


def kendall_tau(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Kendall's τ-b of two (n,) series; NaN for fewer than two values or a constant series.

    Without ties it is 1 − 2 · inverted / pairs.

    Of the six pairs one is inverted, 1 − 2/6:

    >>> round(kendall_tau([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.666667
    """
    a, b = _paired(a, b)
    return float(scipy.stats.kendalltau(a, b).statistic) if _both_vary(a, b) else float("nan")


def spearman_rho(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Spearman's ρ of two (n,) series; NaN for fewer than two values or a constant series.

    Without ties it is 1 − 6 Σ d² / (n³ − n), with d the differences of the ranks: 1 − 6 · 2 / 60.

    >>> round(spearman_rho([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.8
    """
    a, b = _paired(a, b)
    return float(scipy.stats.spearmanr(a, b).statistic) if _both_vary(a, b) else float("nan")


@dataclass(frozen=True)
class PairCounts:
    """How two rankings of the same items order their pairs."""

    inverted: int
    """Pairs that the two order in opposite ways."""
    tied: int
    """Pairs that at least one of the two does not order."""
    pairs: int
    """All pairs, n (n − 1) / 2."""


def inverted_pairs(a: npt.ArrayLike, b: npt.ArrayLike) -> PairCounts:
    """Count the pairs that two (n,) series order in opposite ways.

    >>> inverted_pairs([1, 2, 3, 3], [1, 3, 2, 4])
    PairCounts(inverted=1, tied=1, pairs=6)
    """
    a, b = _paired(a, b)
    i, j = np.triu_indices(len(a), k=1)  # every pair i < j
    # sign((a_i − a_j) (b_i − b_j)): −1 inverted, 0 tied in a or b, 1 in agreement
    product = np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
    return PairCounts(int((product < 0).sum()), int((product == 0).sum()), len(product))


def mean_absolute_rank_shift(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Mean over items of |rank in a − rank in b|, for two (n,) series where higher is better.

    Two of four items change places, by one rank each:

    >>> mean_absolute_rank_shift([4, 3, 2, 1], [3, 4, 2, 1])
    0.5
    """
    a, b = _paired(a, b)
    if not a.size:
        return float("nan")
    return float(np.abs(competition_rank(a) - competition_rank(b)).mean())


def top_k_overlap(a: npt.ArrayLike, b: npt.ArrayLike, k: int) -> float:
    """Share of the k best items by ``a`` that are also among the k best by ``b``.

    The k best are the items of competition rank k or better; where a tie makes them more than k,
    the share is of the larger set.

    Raises:
        ValueError: there are fewer than k items, or k < 1.

    >>> top_k_overlap([4, 3, 2, 1], [4, 1, 3, 2], k=2)
    0.5
    """
    a, b = _paired(a, b)
    if not 1 <= k <= len(a):
        raise ValueError(f"k must lie between 1 and the number of items, {len(a)}, got {k}")
    top_a, top_b = competition_rank(a) <= k, competition_rank(b) <= k
    return int((top_a & top_b).sum()) / max(int(top_a.sum()), int(top_b.sum()))


# --- tests and intervals -------------------------------------------------------------------------


class Interval(NamedTuple):
    """An estimate with its interval; the bounds are NaN where there is none."""

    estimate: float
    low: float
    high: float


def student_quantile(df: int, level: float = 0.95) -> float:
    """The t that |T| stays below with the probability `level`, T of Student's law with `df`."""
    return float(scipy.stats.t.ppf((1 + level) / 2, df))


def t_interval(values: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Mean of (n,) values with its two-sided Student interval, mean ± t · s / √n.

    The bounds are NaN for fewer than two values, and the mean is for none.
    """
    values = _complete(values)
    if len(values) < 2:
        return Interval(float(values[0]) if len(values) else math.nan, math.nan, math.nan)
    mean = float(values.mean())
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = student_quantile(len(values) - 1, level) * standard_error
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class WelchTest:
    """Welch's test of two means; ``low`` and ``high`` bound ``difference`` (mean a − mean b)."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    t: float
    df: float
    p: float
    """Two-sided."""


def welch_test(a: npt.ArrayLike, b: npt.ArrayLike, level: float = 0.95) -> WelchTest:
    """Welch's t-test of two independent samples (n_a,) and (n_b,) of unequal variance.

    Raises:
        ValueError: a sample has fewer than two values, or neither varies.
    """
    a, b = _complete(a), _complete(b)
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"Welch's test needs two values in each group, got {len(a)} and {len(b)}")
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        raise ValueError("Welch's test needs a group whose values vary")
    test = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(level)
    return WelchTest(
        mean_a=float(a.mean()),
        mean_b=float(b.mean()),
        difference=float(a.mean() - b.mean()),
        low=float(interval.low),
        high=float(interval.high),
        t=float(test.statistic),
        df=float(test.df),
        p=float(test.pvalue),
    )


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with its interval (Fisher's z) and two-sided p-value."""

    r: float
    low: float
    high: float
    p: float
    n: int


def pearson(a: npt.ArrayLike, b: npt.ArrayLike, level: float = 0.95) -> Correlation:
    """Pearson correlation of two (n,) series.

    The interval is NaN for fewer than four values; all is NaN for fewer than two or a constant
    series.
    """
    a, b = _paired(a, b)
    nan = float("nan")
    if not _both_vary(a, b):
        return Correlation(nan, nan, nan, nan, len(a))
    result = scipy.stats.pearsonr(a, b)
    low, high = result.confidence_interval(level) if len(a) > 3 else (nan, nan)
    return Correlation(
        float(result.statistic), float(low), float(high), float(result.pvalue), len(a)
    )


# --- resampling of test cases --------------------------------------------------------------------


class GroupDraws:
    """Resamples of test cases, by drawing whole groups (patients, lesions) with replacement.

    They depend only on the groups and the key, so all statistics of a test set are paired.

    Args:
        groups: (n,) the group of each test case.
        key: names the test set or the purpose; the draws follow from its SHA-256.

    Raises:
        ValueError: there are no cases.
    """

    def __init__(self, groups: npt.ArrayLike, key: str) -> None:
        names, self._group_of_case = np.unique(np.asarray(groups), return_inverse=True)
        if not names.size:
            raise ValueError("the bootstrap needs at least one test case, got none")
        self._n_groups = len(names)
        self._generator = np.random.default_rng(sha256_number("bootstrap", key))

    def fill(self, weights: npt.NDArray[Any]) -> None:
        """Put the next resamples into weights (r, n): how often each case occurs in each."""
        drawn = self._generator.integers(0, self._n_groups, size=(len(weights), self._n_groups))
        for row, draw in zip(weights, drawn, strict=True):
            row[:] = np.bincount(draw, minlength=self._n_groups)[self._group_of_case]


def draw_groups(groups: npt.ArrayLike, key: str, replicates: int) -> FloatArray:
    """How often each test case occurs in the test set itself and in its first resamples.

    groups, key: as for :class:`GroupDraws`.

    Returns:
        (1 + replicates, n); the first row is all ones.
    """
    weights = np.ones((1 + replicates, np.size(groups)))
    GroupDraws(groups, key).fill(weights[1:])
    return weights


MOST_UNDEFINED = 0.1
"""The largest share of resamples that may lack a value before there is no interval."""


def percentile_interval(
    replicates: npt.ArrayLike, level: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Percentile interval of each column of (r, …) replicates, those without a value left out.

    NaN for a column that lacks a value in more than a tenth of the replicates.
    """
    ordered = np.sort(np.asarray(replicates, dtype=np.float64), axis=0)  # NaN last
    known = (~np.isnan(ordered)).sum(axis=0)
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        place = tail * (known - 1)  # between two of the ordered values
        below = np.clip(place.astype(np.int64), 0, max(0, len(ordered) - 1))
        above = np.clip(below + 1, 0, np.maximum(known - 1, 0))
        low, high = (np.take_along_axis(ordered, at[None], axis=0)[0] for at in (below, above))
        # low + f (high − low), from the nearer of the two: the bits of np.quantile
        part, gap = place - below, high - low
        ends.append(np.where(part < 0.5, low + part * gap, high - (1 - part) * gap))
    sparse = len(ordered) - known > MOST_UNDEFINED * len(ordered)
    low, high = (np.where(sparse, np.nan, end) for end in ends)
    return low, high


def with_intervals(values: Mapping[str, FloatArray]) -> dict[str, float]:
    """`x`, `x_low`, `x_high` of each name from (1 + R,) values: the test set's, its resamples'."""
    table = np.stack(list(values.values()), axis=1)
    low, high = percentile_interval(table[1:])
    found: dict[str, float] = {}
    for k, name in enumerate(values):
        found |= {name: float(table[0, k])}
        found |= {f"{name}_low": float(low[k]), f"{name}_high": float(high[k])}
    return found


def value_with_interval(values: FloatArray) -> dict[str, float]:
    """`value`, `low`, `high` from (1 + R,) values."""
    low, high = percentile_interval(values[1:])
    return {"value": float(values[0]), "low": float(low), "high": float(high)}


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's step-down adjustment of (m,) p-values: family-wise error without assumptions.

    S. Holm, Scand J Stat 6:65 (1979). NaN stays NaN and does not count.

    Of three, the least times 3, the next times 2, the largest times 1, none below the one before:

    >>> holm([0.04, 0.01, 0.03]).tolist()
    [0.06, 0.03, 0.06]
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(p_values.shape, np.nan)
    order = np.argsort(p_values)[: int(np.isfinite(p_values).sum())]  # NaN sorts last
    factors = np.arange(len(order), 0, -1)
    # adjusted p_(i) = min(1, max_{j ≤ i} (m − j + 1) p_(j)), j = 1 … m in ascending order
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return adjusted


@dataclass(frozen=True, eq=False)
class GroupBootstrap:
    """Replicates of a statistic over resampled groups of test cases."""

    values: FloatArray
    """(replicates, m)."""
    n_redrawn: int
    """Resamples that were thrown away because the statistic was undefined in them."""


def group_bootstrap(
    groups: npt.ArrayLike,
    statistic: Callable[[IntArray], FloatArray],
    key: str,
    replicates: int = 1000,
) -> GroupBootstrap:
    """A statistic in resamples of the test cases, see :class:`GroupDraws`.

    A resample in which the statistic is undefined (a class has only positives or only negatives)
    is drawn anew, and counted.

    Args:
        groups: (n,) the group of each test case.
        statistic: from weights (r, n), how often each case occurs in each of r resamples, to values
            (r, m), NaN where undefined; for instance from
            :func:`crsbench.metrics.discrimination.resampled_auroc`.
        key: names the purpose; the draws follow from its SHA-256.
        replicates: number of resamples that are kept.

    Raises:
        ValueError: there are no cases, or the statistic is undefined in more than nine of ten
            resamples.
    """
    draws = GroupDraws(groups, key)
    kept: list[FloatArray] = []
    n_kept = n_drawn = 0
    while n_kept < replicates:
        weights = np.empty((_BATCH, np.size(groups)), dtype=np.int64)
        draws.fill(weights)
        values = statistic(weights)
        defined = np.flatnonzero(~np.isnan(values).any(axis=1))[: replicates - n_kept]
        n_kept += len(defined)
        # The batch counts up to its last resample in use.
        n_drawn += int(defined[-1]) + 1 if n_kept == replicates else _BATCH
        kept.append(values[defined])
        if n_drawn > 10 * (n_kept + _BATCH):
            raise ValueError(
                f"the statistic is defined in only {n_kept} of {n_drawn} resamples: a class has "
                "too few groups for the bootstrap"
            )
    return GroupBootstrap(np.concatenate(kept), n_drawn - replicates)


# --- helpers -------------------------------------------------------------------------------------

_BATCH = 64
"""Resamples that are evaluated at once: enough to be fast, few enough for the memory."""


def _complete(values: npt.ArrayLike) -> FloatArray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"values must be (n,), got the shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError(f"values must not be missing, {int(np.isnan(values).sum())} are NaN")
    return values


def _paired(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = _complete(a), _complete(b)
    if len(a) != len(b):
        raise ValueError(f"the two series must be of one length, got {len(a)} and {len(b)}")
    return a, b


def _both_vary(a: FloatArray, b: FloatArray) -> bool:
    return len(a) > 1 and bool(np.ptp(a) > 0) and bool(np.ptp(b) > 0)
