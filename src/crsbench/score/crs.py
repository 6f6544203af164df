"""The Clinical Reliability Score: Pareto dominance, proximity to the ideal, worst axis.

Everything is computed element by element, so that a score keeps its exact bits whatever other
encoders are scored beside it.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.metrics.arrays import BoolArray, FloatArray
from crsbench.metrics.statistics import competition_rank
from crsbench.score.reference import Reference
from crsbench.score.scoring import Scoring, Weights

OWN_PANEL = "own panel"
"""The reference of a table without a frozen reference file."""

CRS_COLUMNS = [
    "encoder", "dataset", "dominance", "proximity", "worst_axis", "crs", "crs_rank", "macro_auroc",
    "auroc_rank", "tier", "reference", "floor", "n_datasets", "missing",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Components:
    """The three components of the CRS and their weighted sum; arrays of one shape (…, E)."""

    dominance: FloatArray
    proximity: FloatArray
    worst_axis: FloatArray
    crs: FloatArray


def crs_components(
    axes: FloatArray, peers: FloatArray, is_self: BoolArray, weights: Weights
) -> Components:
    """Score encoders against the peers of a reference panel.

    - dominance: the share of peers, itself left out, that the encoder Pareto-dominates, that is, at
      least as good on all four axes and better on one. Without any peer it is undefined (NaN), and
      so is the CRS.
    - proximity: 1 − ‖1 − a‖₂ / 2, Euclid's distance to the ideal profile over its largest value.
    - worst axis: min(a).

    Args:
        axes: (…, E, 4) normalised axes of the encoders; a NaN makes all components NaN.
        peers: (…, P, 4) normalised axes of the reference panel, complete.
        is_self: (E, P), true where the peer is the encoder itself.
        weights: of the three components.

    An encoder with the axes 1, 1, 1 and ½ against one with ½ on all four: it dominates its one
    peer; it is ½ away from the ideal, of at most 2, so its proximity is ¾; its worst axis is ½.
    The other dominates none, is √(4 · ¼) = 1 away and has ½ for its worst.

    >>> axes = np.array([[1.0, 1.0, 1.0, 0.5], [0.5, 0.5, 0.5, 0.5]])
    >>> parts = crs_components(axes, axes, np.eye(2, dtype=bool), Weights(0.5, 0.25, 0.25))
    >>> parts.dominance.tolist(), parts.proximity.tolist(), parts.worst_axis.tolist()
    ([1.0, 0.0], [0.75, 0.5], [0.5, 0.5])
    >>> parts.crs.tolist()
    [0.8125, 0.25]
    """
    # a dominates b: a_k ≥ b_k for all k and a_k > b_k for one; (…, E, P), axis by axis
    at_least = np.ones((*axes.shape[:-1], peers.shape[-2]), dtype=bool)
    better = np.zeros_like(at_least)
    for k in range(axes.shape[-1]):
        own, other = axes[..., :, None, k], peers[..., None, :, k]
        at_least &= own >= other
        better |= own > other
    # dominance = #{peers that are dominated} / #{peers}, the encoder itself not being one
    wins = (at_least & better & ~is_self).sum(axis=-1)
    n_peers = (~is_self).sum(axis=-1)
    # ‖1 − a‖² = Σ_k (1 − a_k)² and min_k a_k, one axis after the other: `sum` may add otherwise
    squared = np.zeros(axes.shape[:-1])
    worst = axes[..., 0]
    for k in range(axes.shape[-1]):
        squared = squared + np.square(1.0 - axes[..., k])
        worst = np.minimum(worst, axes[..., k])
    with np.errstate(invalid="ignore"):  # 0 / 0 without peers is the NaN we want
        dominance = np.where(np.isnan(worst), np.nan, wins / n_peers)
    proximity = 1.0 - np.sqrt(squared) / 2.0  # the largest distance is √4 = 2
    crs = weights.dominance * dominance + weights.proximity * proximity + weights.worst_axis * worst
    return Components(dominance, proximity, worst, crs)


def crs_table(
    axes: pd.DataFrame,
    scoring: Scoring,
    reference: Reference | None = None,
    floors: Collection[str] = (),
) -> pd.DataFrame:
    """Score and rank the encoders of a table of axes, per data set and in the aggregate.

    Per data set the score is made from the seed-mean axes. The aggregate of each column is its mean
    over the data sets that the encoder has; if one of those has no score, neither has the
    aggregate. Ranks are competition ranks (1, 2, 2, 4), 1 is best.

    Args:
        axes: from :func:`crsbench.score.axes_table`.
        scoring: anchors and weights that made ``axes``.
        reference: a frozen reference; its panel is scored too, from the file. Without one, the
            panel is the encoders of ``axes`` that are no floors.
        floors: encoders that are scored against the panel but never belong to it and get no rank.

    Returns:
        The table ``crs``, sorted by encoder and data set; ``tier`` is empty
        (:func:`crsbench.score.add_tiers` fills it), ``missing`` says why there is no score.

    Raises:
        UserError: ``axes`` or ``scoring`` contradict the frozen reference, or it does not cover a
            data set, or has a floor in its panel.
    """
    panel = Panel.of(axes, scoring, reference, floors)
    parts = [panel.scored(dataset) for dataset in panel.datasets]
    table = pd.concat([*parts, _aggregate(parts)], ignore_index=True)
    table["reference"] = panel.reference_name
    table["floor"] = table["encoder"].isin(list(floors))
    for measure, rank in (("crs", "crs_rank"), ("macro_auroc", "auroc_rank")):
        ranked = table[measure].where(~table["floor"])
        ranks = ranked.groupby(table["dataset"]).transform(lambda of: competition_rank(of))
        table[rank] = ranks.astype("Int64")
    table["missing"] = table["missing"].astype("string")
    table["tier"] = pd.Series(pd.NA, index=table.index, dtype="Int64")
    return table.sort_values(["encoder", "dataset"], ignore_index=True)[CRS_COLUMNS]


@dataclass(frozen=True, eq=False)
class Panel:
    """The encoders to score and, among them, the reference panel that they are scored against."""

    axes: pd.DataFrame
    scoring: Scoring
    reference_name: str
    is_frozen: bool
    members: BoolArray
    """For each row of ``axes``: does its encoder belong to the reference panel of its data set."""

    @classmethod
    def of(
        cls,
        axes: pd.DataFrame,
        scoring: Scoring,
        reference: Reference | None,
        floors: Collection[str],
    ) -> "Panel":
        if reference is not None:
            axes = reference.joined_with(axes, scoring)
        key = ["encoder", "dataset", "seed"]
        twice = axes[axes.duplicated(key)]
        if len(twice):
            first = ", ".join(f"{name} {twice.iloc[0][name]}" for name in key)
            raise ValueError(f"the table of axes has a row twice: {first}")
        axes = axes.sort_values(["dataset", "encoder", "seed"], ignore_index=True)
        is_floor = axes["encoder"].isin(list(floors))
        if reference is None:
            return cls(axes, scoring, OWN_PANEL, False, (~is_floor).to_numpy())
        members = axes["encoder"].isin(reference.encoders)
        if (members & is_floor).any():
            name = axes.loc[members & is_floor, "encoder"].iloc[0]
            raise UserError(
                f"{name} is a floor encoder but belongs to the frozen reference {reference.name}"
            )
        return cls(axes, scoring, reference.name, True, members.to_numpy())

    @property
    def datasets(self) -> list[str]:
        """The names of the data sets, sorted."""
        return sorted(self.axes["dataset"].unique())

    def values(self, dataset: str) -> tuple[pd.DataFrame, FloatArray, BoolArray, BoolArray]:
        """Seed means of a data set: rows by encoder (E), axes (E, 4), peer mask, self (E, P)."""
        chosen = ((self.axes["dataset"] == dataset) & (self.axes["seed"] == SEED_MEAN)).to_numpy()
        rows = self.axes[chosen].reset_index(drop=True)
        values = rows[[f"axis_{name}" for name in self.scoring.axes]].to_numpy(np.float64)
        is_peer = self.members[chosen] & ~np.isnan(values).any(axis=1)
        return rows, values, is_peer, np.eye(len(rows), dtype=bool)[:, is_peer]

    def scored(self, dataset: str) -> pd.DataFrame:
        rows, values, is_peer, is_self = self.values(dataset)
        parts = crs_components(values, values[is_peer], is_self, self.scoring.weights)
        no_peer = ~np.isnan(parts.worst_axis) & np.isnan(parts.dominance)
        return pd.DataFrame(
            {
                "encoder": rows["encoder"],
                "dataset": dataset,
                "dominance": parts.dominance,
                "proximity": parts.proximity,
                "worst_axis": parts.worst_axis,
                "crs": parts.crs,
                "macro_auroc": rows["macro_auroc"],
                "n_datasets": 1,
                "missing": rows["missing"].mask(no_peer, "no peer in the reference panel"),
            }
        )


def _aggregate(parts: list[pd.DataFrame]) -> pd.DataFrame:
    records = []
    for encoder, rows in pd.concat(parts).groupby("encoder", sort=True):
        rows = rows.sort_values("dataset")
        record: dict[str, object] = {"encoder": encoder, "dataset": AGGREGATE}
        for name in ("dominance", "proximity", "worst_axis", "crs", "macro_auroc"):
            record[name] = sum(rows[name].tolist()) / len(rows)
        unscored = rows.loc[rows["crs"].isna(), "dataset"]
        record["n_datasets"] = len(rows)
        record["missing"] = f"no score on {', '.join(unscored)}" if len(unscored) else None
        records.append(record)
    return pd.DataFrame(records)
