"""The result in words, made from the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from crsbench.core.names import AGGREGATE

NUMERALS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


LONG = 40
"""Letters of names that a headline can hold; longer lists are counted instead."""


def headline(crs: pd.DataFrame, pairs: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Who is first, who cannot be separated from it, and how many form the first tier.

    crs, pairs: the tables `crs` and `bootstrap_pairs`.
    """
    ranked = _ranked(crs)
    if ranked.empty:
        return "No encoder has a score."
    first = ranked[ranked["crs_rank"] == 1]
    if ranked["tier"].isna().any() or len(ranked) < 2:
        return (
            f"{_named(first, titles)} {'has' if len(first) == 1 else 'have'} the highest score; "
            "how sure that is cannot be said from one seed or one encoder."
        )
    leader = ranked["encoder"].iloc[0]
    near = ranked[ranked["encoder"].isin(_not_separated(leader, pairs))]
    in_tier = int((ranked["tier"] == 1).sum())
    if near.empty and in_tier == 1:
        return f"{titles[leader]} leads alone: it is separated from every other encoder."
    tier = (
        "all encoders are in one tier."
        if in_tier == len(ranked)
        else f"{_count(in_tier)} encoders form the first tier."
    )
    if len(near) == 1:
        return f"{titles[leader]} and {_named(near, titles)} cannot be separated; {tier}"
    others = _named(near, titles)
    if len(near) > 3 or len(others) > LONG:
        others = f"{_count(len(near))} others"
    return f"{titles[leader]} is first, but {others} cannot be separated from it; {tier}"


def with_ranks(
    crs: pd.DataFrame, joint: pd.DataFrame, pairs: pd.DataFrame, titles: Mapping[str, str]
) -> str:
    """Who is first, and which ranks that leaves it, over test cases and seeds.

    crs, joint, pairs: the tables `crs`, `joint_bootstrap` and `joint_bootstrap_pairs`.
    """
    ranked = _ranked(crs)
    if ranked.empty:
        return "No encoder has a score."
    leader = ranked["encoder"].iloc[0]
    own = joint[(joint["dataset"] == AGGREGATE) & (joint["encoder"] == leader)]
    near = ranked[ranked["encoder"].isin(_not_separated(leader, pairs))]
    if own.empty or len(ranked) < 2:
        return f"{titles[leader]} has the highest score; there is no other to compare it with."
    if near.empty:
        return f"{titles[leader]} leads: it is separated from every other encoder."
    others = _named(near, titles)
    if len(near) > 3 or len(others) > LONG:
        others = f"{_count(len(near))} others"
    return (
        f"{titles[leader]} has the highest score, but {others} cannot be separated from it: "
        f"its rank is between 1 and {int(own['rank_high'].iloc[0])} of {len(ranked)}."
    )


def _not_separated(leader: str, pairs: pd.DataFrame) -> set[str]:
    own = pairs[(pairs["dataset"] == AGGREGATE) & ~pairs["separated"].astype(bool)]
    other = own["encoder_b"].where(own["encoder_a"] == leader, own["encoder_a"])
    return set(other[(own["encoder_a"] == leader) | (own["encoder_b"] == leader)])


def by_auroc(crs: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Who leads by CRS and who by AUROC, ties included."""
    ranked = _ranked(crs)
    crs_first, auroc_first = (ranked[ranked[rank] == 1] for rank in ("crs_rank", "auroc_rank"))
    if crs_first.empty or auroc_first.empty:
        return ""
    return (
        f"Highest Clinical Reliability Score: {_named(crs_first, titles)} "
        f"({crs_first['crs'].iloc[0]:.3f}). Highest macro-AUROC: {_named(auroc_first, titles)} "
        f"({auroc_first['macro_auroc'].iloc[0]:.3f})."
    )


def first_tier(crs: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Who is in the first tier, where it holds more than the headline names."""
    ranked = _ranked(crs)
    top = ranked[ranked["tier"] == 1]
    return f"First tier: {_named(top, titles)}." if 2 < len(top) <= 6 else ""


def _ranked(crs: pd.DataFrame) -> pd.DataFrame:
    """The ranked encoders' rows of the aggregate, best first."""
    ranked = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"] & crs["crs"].notna()]
    return ranked.sort_values(["crs_rank", "encoder"])


def _named(rows: pd.DataFrame, titles: Mapping[str, str]) -> str:
    return listed([titles[name] for name in rows["encoder"]])


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _count(number: int) -> str:
    return NUMERALS[number] if number < len(NUMERALS) else str(number)
