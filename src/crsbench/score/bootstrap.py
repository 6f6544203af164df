"""The seed-paired bootstrap: how sure scores, ranks and differences are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_number
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.metrics.arrays import BoolArray, FloatArray, IntArray
from crsbench.metrics.statistics import competition_rank, percentile_interval, student_quantile
from crsbench.score.crs import Panel, crs_components
from crsbench.score.reference import Reference
from crsbench.score.scoring import Scoring

REPLICATES = 10_000


@dataclass(frozen=True, eq=False)
class SeedBootstrap:
    """The three tables of the bootstrap, each per data set and for the aggregate."""

    table: pd.DataFrame
    """``encoder, dataset, crs, crs_low, crs_high, crs_se, p_rank1, p_top3, mean_rank, tier,
    n_seeds, replicates``; a floor encoder has no rank and no tier."""
    pairs: pd.DataFrame
    """``dataset, encoder_a, encoder_b, difference`` (CRS of a minus b), ``low, high, se,
    p_a_above, separated``, for all pairs of ranked encoders, a before b in the alphabet."""
    ranks: pd.DataFrame
    """``encoder, dataset, rank, probability``: the distribution of the rank."""


def seed_bootstrap(
    axes: pd.DataFrame,
    scoring: Scoring,
    reference: Reference | None = None,
    floors: Collection[str] = (),
    replicates: int = REPLICATES,
    level: float = 0.95,
) -> SeedBootstrap:
    """Resample the seeds, the same draw for all encoders and data sets, and score each replicate.

    A replicate draws as many seeds as there are, with replacement, averages the measures over
    them, and makes axes, CRS and ranks anew. Without a frozen reference the panel is resampled with
    the encoders; with one, the peers stay at their frozen seed means, as they do in the score.

    Intervals of scores and differences are percentile intervals. Seeds vary the training set, the
    labels and the probe but not the test cases, so the intervals leave those out; and with few
    seeds they are too narrow (no replicate lies beyond the range of the seeds). Two encoders are
    therefore *separated* only when their difference exceeds t · √(S / (S − 1)) · SE, with SE the
    bootstrap standard error and t Student's quantile for S − 1 degrees of freedom; for a plain
    mean over S seeds that is the paired t-test.

    Ranks are competition ranks, so encoders tied for the first rank all count as first.

    Args:
        axes: from :func:`crsbench.score.axes_table`.
        scoring: anchors and weights that made ``axes``.
        reference: a frozen reference, as for :func:`crsbench.score.crs_table`.
        floors: as for :func:`crsbench.score.crs_table`.
        replicates: number of draws.
        level: of the intervals and of separation.

    Raises:
        UserError: fewer than two seeds, or a cell whose seeds are not those of the others.
    """
    panel = Panel.of(axes, scoring, reference, floors)
    seeds = _common_seeds(panel.axes)
    counts, which = _draw(len(seeds), replicates)
    encoders = np.array(sorted(panel.axes["encoder"].unique()))
    is_floor = np.isin(encoders, list(floors))
    scores: dict[str, FloatArray] = {}
    has: dict[str, BoolArray] = {}
    for dataset in panel.datasets:
        has[dataset] = np.isin(encoders, panel.values(dataset)[0]["encoder"])
        scores[dataset] = np.full((len(counts), len(encoders)), np.nan)
        scores[dataset][:, has[dataset]] = _replicated_crs(panel, dataset, counts)
    scores[AGGREGATE] = _aggregate(scores, has)
    parts = []
    for dataset, values in scores.items():
        scored = ~np.isnan(values[0])
        of_scored = (encoders[scored].tolist(), is_floor[scored], values[:, scored])
        parts.append(_summary(dataset, *of_scored, which, len(seeds), level))
    return SeedBootstrap(*(_stacked(of_kind) for of_kind in zip(*parts, strict=True)))


def add_tiers(crs: pd.DataFrame, bootstrap: SeedBootstrap) -> pd.DataFrame:
    """The table ``crs`` with the tiers of the bootstrap in its column ``tier``."""
    tiers = bootstrap.table[["encoder", "dataset", "tier"]]
    merged = crs.drop(columns="tier").merge(tiers, on=["encoder", "dataset"], how="left")
    return merged[crs.columns]


def tiers(scores: npt.ArrayLike, separated: npt.ArrayLike) -> IntArray:
    """Groups of encoders that the differences cannot distinguish, 1 is the best.

    A boundary between two groups lies where every encoder above is separated from every encoder
    below, as in the rankings of the Workshop on Machine Translation (Bojar et al., 2013). So
    encoders of different tiers are always separated; those of one tier may, at its ends, be too.

    Args:
        scores: (E,).
        separated: (E, E) symmetric, true where the pair can be distinguished.

    The first two are separated from the third but not from each other:

    >>> tiers([0.9, 0.8, 0.3], [[0, 0, 1], [0, 0, 1], [1, 1, 0]]).tolist()
    [1, 1, 2]
    """
    scores = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    pair = np.asarray(separated, dtype=bool)[np.ix_(order, order)]
    # A tier opens at i if all of 0 … i − 1 are separated from all of i … E − 1.
    opens = [i > 0 and bool(pair[:i, i:].all()) for i in range(len(order))]
    result = np.empty(len(order), dtype=np.int64)
    result[order] = 1 + np.cumsum(opens, dtype=np.int64)
    return result


def _common_seeds(axes: pd.DataFrame) -> list[int]:
    """The seeds of the table, which every cell must have: a draw is shared by all of them."""
    single = axes[axes["seed"] != SEED_MEAN]
    seeds = sorted(int(seed) for seed in single["seed"].unique())
    if len(seeds) < 2:
        raise UserError(f"the seed-paired bootstrap needs at least two seeds, found {seeds}")
    for (encoder, dataset), own in single.groupby(["encoder", "dataset"])["seed"]:
        if sorted(own) != seeds:
            raise UserError(
                f"the seed-paired bootstrap needs the same seeds everywhere: {encoder} on {dataset}"
                f" has {sorted(int(seed) for seed in own)}, together there are {seeds}"
            )
    return seeds


def _draw(n_seeds: int, replicates: int) -> tuple[IntArray, IntArray]:
    """How often each replicate draws each seed.

    Few seeds give few different draws (126 for five), so each is scored only once.

    Returns:
        (U + 1, S) different draws, the first being each seed once, and (R,) which one each
        replicate is.
    """
    generator = np.random.default_rng(sha256_number("seed-paired bootstrap"))
    drawn = generator.integers(0, n_seeds, size=(replicates, n_seeds))
    # counts (R, S): how often replicate r drew seed s
    counts = (drawn[:, :, None] == np.arange(n_seeds)).sum(axis=1)
    different, which = np.unique(counts, axis=0, return_inverse=True)
    return np.vstack([np.ones((1, n_seeds), dtype=np.int64), different]), which.ravel() + 1


def _replicated_crs(panel: Panel, dataset: str, counts: IntArray) -> FloatArray:
    """CRS of the data set's encoders (E) in each of the U + 1 draws: (U + 1, E)."""
    _, seed_means, is_peer, is_self = panel.values(dataset)
    single = panel.axes[(panel.axes["dataset"] == dataset) & (panel.axes["seed"] != SEED_MEAN)]
    axes = np.empty((len(counts), *seed_means.shape))
    for k, axis in enumerate(panel.scoring.axes.values()):
        by_seed = single[axis.measure].to_numpy(np.float64).reshape(len(seed_means), -1)
        # Σ_s count_s m_s / S of each encoder, then normalised; added seed by seed, in one order
        total = np.zeros(axes.shape[:2])
        for s in range(counts.shape[1]):
            total = total + counts[:, s, None] * by_seed[:, s]
        axes[..., k] = axis.normalise(total / counts.shape[1])
    peers = seed_means[is_peer] if panel.is_frozen else axes[:, is_peer]
    return crs_components(axes, peers, is_self, panel.scoring.weights).crs


def _aggregate(scores: dict[str, FloatArray], has: dict[str, BoolArray]) -> FloatArray:
    """Mean over the data sets that each encoder has; missing where one of them has no score."""
    total = np.zeros_like(next(iter(scores.values())))
    for dataset, values in scores.items():
        total = total + np.where(has[dataset], values, 0.0)
    mean: FloatArray = total / np.sum(list(has.values()), axis=0)
    return mean


def _summary(
    dataset: str,
    encoders: list[str],
    is_floor: BoolArray,
    scores: FloatArray,
    which: IntArray,
    n_seeds: int,
    level: float,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The three tables of one data set from the scores (U + 1, E) of its scored encoders."""
    replicated = scores[which]
    low, high = percentile_interval(replicated, level)
    ranked = np.flatnonzero(~is_floor)
    table = pd.DataFrame(
        {
            "encoder": encoders,
            "dataset": dataset,
            "crs": scores[0],
            "crs_low": low,
            "crs_high": high,
            "crs_se": replicated.std(axis=0),
        }
    )
    ranks = competition_rank(scores[:, ranked])[which]
    names = [encoders[i] for i in ranked]
    pairs = _pairs(dataset, names, scores[:, ranked], which, n_seeds, level)
    of_ranked = {
        "p_rank1": (ranks == 1).mean(axis=0),
        "p_top3": (ranks <= 3).mean(axis=0),
        "mean_rank": ranks.mean(axis=0),
    }
    for name, values in of_ranked.items():
        table[name] = pd.Series(values, index=ranked)
    tier = tiers(scores[0, ranked], _square(pairs, names))
    table["tier"] = pd.Series(tier, index=ranked, dtype="Int64")
    table["n_seeds"] = n_seeds
    table["replicates"] = len(which)
    shares = [
        {"encoder": name, "dataset": dataset, "rank": rank, "probability": (own == rank).mean()}
        for name, own in zip(names, ranks.T, strict=True)
        for rank in range(1, len(names) + 1)
    ]
    columns = ["encoder", "dataset", "rank", "probability"]
    return table, pairs, pd.DataFrame(shares, columns=columns)


def _pairs(
    dataset: str,
    encoders: list[str],
    scores: FloatArray,
    which: IntArray,
    n_seeds: int,
    level: float,
) -> pd.DataFrame:
    first, second = np.triu_indices(len(encoders), k=1)
    differences = scores[:, first] - scores[:, second]
    replicated = differences[which]
    low, high = percentile_interval(replicated, level)
    # separated: |d| > t · √(S / (S − 1)) · SE. The bootstrap's SE of a mean of S seeds has S in the
    # denominator of its variance where Student's has S − 1.
    se = replicated.std(axis=0)
    quantile = student_quantile(n_seeds - 1, level)
    return pd.DataFrame(
        {
            "dataset": dataset,
            "encoder_a": [encoders[i] for i in first],
            "encoder_b": [encoders[i] for i in second],
            "difference": differences[0],
            "low": low,
            "high": high,
            "se": se,
            "p_a_above": (replicated > 0).mean(axis=0),
            "separated": np.abs(differences[0]) > quantile * np.sqrt(n_seeds / (n_seeds - 1)) * se,
        }
    )


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table; its names are text even where no data set has a scored encoder."""
    table = pd.concat(tables, ignore_index=True)
    names = {"encoder", "encoder_a", "encoder_b", "dataset"} & set(table.columns)
    return table.astype(dict.fromkeys(names, "str"))


def _square(pairs: pd.DataFrame, encoders: list[str]) -> BoolArray:
    """The column ``separated`` as a symmetric (E, E) matrix."""
    square = np.zeros((len(encoders), len(encoders)), dtype=bool)
    square[np.triu_indices(len(encoders), k=1)] = pairs["separated"].to_numpy()
    return square | square.T
