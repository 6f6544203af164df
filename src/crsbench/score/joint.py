"""The joint bootstrap: how sure axes, scores, differences and ranks are over test cases and seeds.

Seeds share one test set, so resampling seeds alone says nothing of the test cases there happen to
be. Here a replicate draws whole groups of cases (patients, lesions; one draw for all encoders,
seeds and conditions of a test set) and seeds (one draw for all encoders and data sets), and makes
measures, axes, CRS and ranks anew. What the draws leave out: the seeds' training sets overlap, so
the variation from one pool of training images to another is only partly seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import norm

from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_number
from crsbench.core.names import AGGREGATE
from crsbench.metrics.arrays import BoolArray, FloatArray, IntArray
from crsbench.metrics.statistics import competition_rank
from crsbench.score.axes import MeasurePlan, RunKey, measures_of
from crsbench.score.crs import Panel, crs_components
from crsbench.score.reference import Reference
from crsbench.score.scoring import Scoring

AUROC, ECE, SOURCE, TARGET = "macro_auroc", "ece", "source_macro_auroc", "target_macro_auroc"
"""The statistics that the measures are made of; the last two are a shift's two sides."""

INTERVALS = ("macro_auroc", "ece", "retention", "drop", "crs")
"""What the table has an interval of."""

WITHIN = {"macro_auroc": (0.0, 1.0), "ece": (0.0, 1.0), "crs": (0.0, 1.0)}
"""The possible range, which no interval leaves."""


@dataclass(frozen=True, eq=False)
class Resamples:
    """What resamples of the test cases make of the statistics of one encoder on one data set.

    statistics: (M,) of (condition, percent of labels, one of the four names above). seeds: (S,).
    values: (S, M) on the test set itself. changes: (R, S, M), a resample's value less that one.
    """

    statistics: Sequence[tuple[str, int, str]]
    seeds: IntArray
    values: FloatArray
    changes: FloatArray
    n_cases: int
    n_groups: int

    def by_name(self) -> dict[tuple[str, int, str], FloatArray]:
        """By statistic (1 + R, S): its values, then those of the replicates."""
        replicates = np.concatenate([self.values[None], self.values + self.changes])
        return {name: replicates[..., m] for m, name in enumerate(self.statistics)}

    def measures(self, plan: MeasurePlan) -> dict[str, FloatArray]:
        """By measure (1 + R, S)."""
        found = self.by_name()
        auroc: dict[RunKey, FloatArray] = {
            (condition, percent): values
            for (condition, percent, name), values in found.items()
            if name == AUROC
        }
        ece = next(values for (_, _, name), values in found.items() if name == ECE)
        shifted = [found[to, 100, SOURCE] - found[to, 100, TARGET] for to in plan.targets]
        return measures_of(auroc, ece, shifted, plan)


@dataclass(frozen=True, eq=False)
class JointBootstrap:
    """The two tables of the joint bootstrap, each per data set and for the aggregate."""

    table: pd.DataFrame
    """``encoder, dataset``, ``<x>, <x>_low, <x>_high`` of each of :data:`INTERVALS` (the aggregate
    has macro_auroc and crs only), ``crs_se, p_rank1, p_top3, mean_rank, rank_low, rank_high,
    n_cases, n_groups, n_seeds, replicates``; a floor encoder has no ranks."""
    pairs: pd.DataFrame
    """``dataset, encoder_a, encoder_b, difference`` (CRS of a minus b), ``low, high`` (simultaneous
    over the pairs of the data set), ``se, p_a_above, separated, equivalent``, for all pairs of
    ranked encoders, a before b in the alphabet."""


def joint_bootstrap(
    axes: pd.DataFrame,
    resamples: Mapping[tuple[str, str], Resamples],
    plans: Mapping[str, MeasurePlan],
    scoring: Scoring,
    reference: Reference | None = None,
    floors: Collection[str] = (),
    *,
    margin: float = 0.01,
    level: float = 0.95,
) -> JointBootstrap:
    """Intervals of measures and scores, and the ranks that the differences do not exclude.

    A replicate's value of a seed s is its value on the resampled cases; seeds are averaged with
    weights 1/S + √(S/(S − 1)) (c_s/S − 1/S), c_s how often the seed was drawn: without the root the
    variance over S seeds would be (S − 1)/S of the unbiased one. With one seed only cases vary.

    Two encoders are *separated* when their difference is outside what the largest of all
    studentised differences of the data set reaches by chance: |d| > q · SE, q the ``level``
    quantile over replicates of max over pairs |d* − mean d*| / SE (max-t; Westfall and Young,
    1993). So the chance of any false separation among the encoders is 1 − ``level``. The ranks
    that remain for an encoder run from 1 + the number separated above it to E − the number
    separated below it, and all of them hold together (Mohamad, Goeman and van Zwet, 2018).

    Args:
        axes: from :func:`crsbench.score.axes_table`.
        resamples: by encoder and data set.
        plans: by data set what its measures are made of, :meth:`MeasurePlan.of` of its runs.
        scoring: anchors and weights that made ``axes``.
        reference: a frozen reference; its encoders stay at their frozen values.
        floors: as for :func:`crsbench.score.crs_table`.
        margin: of CRS, within which two encoders count as equivalent when the whole interval of
            their difference is.
        level: of all intervals and of separation.

    Raises:
        UserError: the cells were resampled for different seeds, or a different number of times.
    """
    panel = Panel.of(axes, scoring, reference, floors)
    shapes = {(tuple(of.seeds.tolist()), of.changes.shape[0]) for of in resamples.values()}
    if len(shapes) != 1:
        raise UserError(
            f"the resamples of the cells have different seeds or counts: {sorted(shapes)}; rerun "
            "with --forcerun resample"
        )
    (seeds, n_replicates) = shapes.pop()
    weights = seed_weights(len(seeds), n_replicates)
    encoders = np.array(sorted(panel.axes["encoder"].unique()))
    is_floor = np.isin(encoders, list(floors))
    measures = {
        dataset: _replicated_measures(panel, dataset, resamples, plans, weights, encoders)
        for dataset in panel.datasets
    }
    has = {d: np.isin(encoders, panel.values(d)[0]["encoder"]) for d in panel.datasets}
    measures[AGGREGATE] = {
        name: np.sum([np.where(has[d], measures[d][name], 0.0) for d in has], axis=0)
        / np.sum(list(has.values()), axis=0)
        for name in ("macro_auroc", "crs")
    }
    tables, pairs = [], []
    for dataset, values in measures.items():
        scored = ~np.isnan(values["crs"]).any(axis=0)
        own = {name: of[:, scored] for name, of in values.items()}
        table = _table(dataset, encoders[scored], is_floor[scored], own, level)
        sizes = {
            name: [getattr(of, f"n_{name}") if of else pd.NA for of in
                   (resamples.get((encoder, dataset)) for encoder in table["encoder"])]
            for name in ("cases", "groups")
        }  # fmt: skip
        table["n_cases"] = pd.array(sizes["cases"], dtype="Int64")
        table["n_groups"] = pd.array(sizes["groups"], dtype="Int64")
        table["n_seeds"], table["replicates"] = len(seeds), n_replicates
        ranked = ~is_floor[scored]
        of_pairs = _pairs(dataset, encoders[scored][ranked], own["crs"][:, ranked], margin, level)
        tables.append(_with_rank_range(table, of_pairs, ranked))
        pairs.append(of_pairs)
    return JointBootstrap(pd.concat(tables, ignore_index=True), pd.concat(pairs, ignore_index=True))


def seed_weights(n_seeds: int, replicates: int) -> FloatArray:
    """(1 + R, S) how much each seed weighs in the seeds' mean, and in each replicate's."""
    weights = np.full((1 + replicates, n_seeds), 1 / n_seeds)
    if n_seeds > 1:
        generator = np.random.default_rng(sha256_number("joint bootstrap: seeds"))
        drawn = generator.integers(0, n_seeds, size=(replicates, n_seeds))
        share = (drawn[:, :, None] == np.arange(n_seeds)).mean(axis=1)  # c_s / S
        weights[1:] += np.sqrt(n_seeds / (n_seeds - 1)) * (share - 1 / n_seeds)
    return weights


def _replicated_measures(
    panel: Panel,
    dataset: str,
    resamples: Mapping[tuple[str, str], Resamples],
    plans: Mapping[str, MeasurePlan],
    weights: FloatArray,
    encoders: npt.NDArray[np.str_],
) -> dict[str, FloatArray]:
    """By measure, and ``crs``: (1 + R, E) of all encoders; NaN where one was not resampled."""
    rows, seed_means, is_peer, is_self = panel.values(dataset)
    found = {name: np.full((len(weights), len(rows)), np.nan) for name in INTERVALS[:-1]}
    for e, encoder in enumerate(rows["encoder"]):
        of = resamples.get((encoder, dataset))
        if of is not None:
            measures = of.measures(plans[dataset])
            for name in found:
                found[name][:, e] = (np.broadcast_to(measures[name], weights.shape) * weights).sum(
                    axis=1
                )
    axes = np.empty((*found["ece"].shape, len(panel.scoring.axes)))
    for k, axis in enumerate(panel.scoring.axes.values()):
        axes[..., k] = axis.normalise(found[axis.measure])
    axes[0] = seed_means  # the score itself, to the last bit
    peers = seed_means[is_peer] if panel.is_frozen else axes[:, is_peer]
    found["crs"] = crs_components(axes, peers, is_self, panel.scoring.weights).crs
    where = np.searchsorted(encoders, rows["encoder"].to_numpy(str))
    spread = {}
    for name, values in found.items():
        spread[name] = np.full((len(weights), len(encoders)), np.nan)
        spread[name][:, where] = values
    return spread


def _table(
    dataset: str,
    encoders: npt.NDArray[np.str_],
    is_floor: BoolArray,
    values: Mapping[str, FloatArray],
    level: float,
) -> pd.DataFrame:
    columns: dict[str, object] = {"encoder": encoders.tolist(), "dataset": dataset}
    z = norm.ppf((1 + level) / 2)
    for name in INTERVALS:
        of = values.get(name, np.full((2, len(encoders)), np.nan))
        # x ± z SE: where encoders are close, dominance makes the replicates of a CRS lie to one
        # side of it, and their percentiles hold the truth too seldom.
        reach = z * of[1:].std(axis=0)
        low, high = of[0] - reach, of[0] + reach
        if name in WITHIN:
            low, high = np.clip(low, *WITHIN[name]), np.clip(high, *WITHIN[name])
        columns |= {name: of[0], f"{name}_low": low, f"{name}_high": high}
    replicated = values["crs"][1:]
    table = pd.DataFrame(columns | {"crs_se": replicated.std(axis=0)})
    ranked = np.flatnonzero(~is_floor)
    ranks = competition_rank(replicated[:, ranked])
    for name, of_ranked in (
        ("p_rank1", (ranks == 1).mean(axis=0)),
        ("p_top3", (ranks <= 3).mean(axis=0)),
        ("mean_rank", ranks.mean(axis=0)),
    ):
        table[name] = pd.Series(of_ranked, index=ranked, dtype="float64")
    return table


def _pairs(
    dataset: str,
    encoders: npt.NDArray[np.str_],
    scores: FloatArray,
    margin: float,
    level: float,
) -> pd.DataFrame:
    """All pairs from the scores (1 + R, E): the first row are the scores themselves."""
    first, second = np.triu_indices(len(encoders), k=1)
    differences = scores[:, first] - scores[:, second]
    difference, replicated = differences[0], differences[1:]
    se = replicated.std(axis=0)
    varies = se > 0
    reach = np.abs(replicated[:, varies] - replicated[:, varies].mean(axis=0)) / se[varies]
    # q: the level quantile of max over pairs |d* − mean d*| / SE
    q = float(np.quantile(reach.max(axis=1), level)) if varies.any() else 0.0
    low, high = difference - q * se, difference + q * se
    return pd.DataFrame(
        {
            "dataset": dataset,
            "encoder_a": encoders[first].tolist(),
            "encoder_b": encoders[second].tolist(),
            "difference": difference,
            "low": low,
            "high": high,
            "se": se,
            "p_a_above": (replicated > 0).mean(axis=0),
            "separated": (low > 0) | (high < 0),
            "equivalent": (low > -margin) & (high < margin),
        }
    ).astype({"encoder_a": "str", "encoder_b": "str", "separated": bool, "equivalent": bool})


def _with_rank_range(table: pd.DataFrame, pairs: pd.DataFrame, ranked: BoolArray) -> pd.DataFrame:
    """The table with ``rank_low`` (best) and ``rank_high``: what the separated pairs leave."""
    names = table["encoder"][ranked]
    separated = pairs[pairs["separated"]]
    winner = separated["encoder_a"].where(separated["difference"] > 0, separated["encoder_b"])
    loser = separated["encoder_b"].where(separated["difference"] > 0, separated["encoder_a"])
    better, worse = (names.map(side.value_counts()).fillna(0) for side in (loser, winner))
    table["rank_low"] = (1 + better).astype("Int64")
    table["rank_high"] = (len(names) - worse).astype("Int64")
    return table
