"""The tables of the score, from the runs to tiers, in one go."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from crsbench.core.names import SEED_MEAN
from crsbench.score import (
    Reference,
    Scoring,
    SeedBootstrap,
    add_tiers,
    axes_table,
    crs_table,
    runs_to_rows,
    seed_bootstrap,
)

PAIR_COLUMNS = [
    "dataset", "encoder_a", "encoder_b", "difference", "low", "high", "se", "p_a_above",
    "separated",
]  # fmt: skip
RANK_COLUMNS = ["encoder", "dataset", "rank", "probability"]


def score_tables(
    runs: pd.DataFrame,
    scoring: Scoring,
    shift_targets: Mapping[str, Sequence[str]],
    reference: Reference | None,
    floors: Collection[str],
    replicates: int,
) -> dict[str, pd.DataFrame]:
    """The tables ``rows, axes, crs, bootstrap, bootstrap_pairs, bootstrap_ranks``, by name.

    One seed cannot be resampled: then ``bootstrap`` has the scores without intervals, its other two
    tables have no rows, and ``crs`` has no tiers.

    Args:
        runs: the table ``runs``.
        scoring: anchors and weights.
        shift_targets: by data set, the conditions that are other institutions.
        reference: a frozen reference to score against, or None for the runs' own panel.
        floors: encoders that are scored but not ranked, and never part of a panel.
        replicates: of the seed-paired bootstrap, whose intervals and tiers are at 95 %.

    Raises:
        UserError: the runs contradict the frozen reference, or lack seeds that it has.
    """
    axes = axes_table(runs, scoring, shift_targets)
    crs = crs_table(axes, scoring, reference, floors)
    seeds = axes if reference is None else pd.concat([axes, reference.axes])
    if seeds.loc[seeds["seed"] != SEED_MEAN, "seed"].nunique() > 1:
        bootstrap = seed_bootstrap(axes, scoring, reference, floors, replicates)
    else:
        bootstrap = _one_seed(crs)
    return {
        "rows": runs_to_rows(runs),
        "axes": axes,
        "crs": add_tiers(crs, bootstrap),
        "bootstrap": bootstrap.table,
        "bootstrap_pairs": bootstrap.pairs,
        "bootstrap_ranks": bootstrap.ranks,
    }


def _one_seed(crs: pd.DataFrame) -> SeedBootstrap:
    """What the bootstrap of a single seed can say: the scores, and nothing of how sure they are."""
    table = crs.loc[crs["crs"].notna(), ["encoder", "dataset", "crs"]]
    table = table.sort_values(["dataset", "encoder"], ignore_index=True)
    for name in ("crs_low", "crs_high", "crs_se", "p_rank1", "p_top3", "mean_rank"):
        table[name] = float("nan")
    table["tier"] = pd.Series(pd.NA, index=table.index, dtype="Int64")
    table["n_seeds"] = 1
    table["replicates"] = 0
    return SeedBootstrap(
        table, pd.DataFrame(columns=PAIR_COLUMNS), pd.DataFrame(columns=RANK_COLUMNS)
    )
