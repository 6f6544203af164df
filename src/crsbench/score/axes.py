"""From runs to the four axes: means over seeds, retention, drops, and their normalised values.

All sums run over sorted keys one row at a time, so that a row keeps its exact bits whatever other
encoders are in the table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from crsbench.core.names import AGGREGATE, CLEAN, SEED_MEAN
from crsbench.score.scoring import MEASURES, Scoring

METRICS = ("macro_auroc", "ece", "classwise_ece", "adaptive_ece", "brier", "log_loss")
CORE = "macro_auroc_core"
"""A metric that a table of runs may lack: macro-AUROC without the excluded classes."""

BOTH_SIDES = ("source_macro_auroc", "target_macro_auroc")
"""Of a run on a shift target: the clean and the target's macro-AUROC over the same classes."""
RUN_KEY = ["encoder", "dataset", "seed", "condition", "percent"]

Value = Any  # a float, or an array of floats

RunKey = tuple[str, int]
"""Condition and percent of labels of a run within one encoder, data set and seed."""


def runs_to_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation of each metric over the seeds of a run.

    Args:
        runs: the table ``runs``, one row per run.

    Returns:
        The table ``rows``: ``encoder, dataset, condition, percent, n_seeds`` and, for each metric,
        ``<metric>_mean`` and ``<metric>_sd`` (n − 1 in the denominator; missing for one seed). A
        metric that is missing in one seed is missing in both. ``macro_auroc_core`` is among the
        metrics where the table of runs has it.

    Raises:
        ValueError: a column is absent or a run occurs twice.

    Two seeds with an AUROC of 0.5 and 0.75: mean 0.625, deviation √(2 · 0.125² / 1).

    >>> key = {"encoder": "a", "dataset": "d", "condition": "clean", "percent": 100}
    >>> seeds = pd.DataFrame([key | {"seed": 0}, key | {"seed": 1}])
    >>> runs = seeds.assign(**dict.fromkeys(METRICS, [0.5, 0.75]))
    >>> runs_to_rows(runs)[["macro_auroc_mean", "macro_auroc_sd"]].round(4).values.tolist()
    [[0.625, 0.1768]]
    """
    metrics = [*METRICS, *(name for name in runs.columns if name == CORE)]
    runs = _checked_runs(runs, metrics)
    key = [name for name in RUN_KEY if name != "seed"]
    groups = runs.groupby(key, sort=True)
    rows = groups.size().rename("n_seeds").to_frame()
    for metric in metrics:
        complete = groups[metric].count() == rows["n_seeds"]
        rows[f"{metric}_mean"] = groups[metric].mean().where(complete)
        rows[f"{metric}_sd"] = groups[metric].std(ddof=1).where(complete)
    return rows.reset_index()


def axes_table(
    runs: pd.DataFrame, scoring: Scoring, shift_targets: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """The measures and axes of each encoder × data set, per seed and as their mean.

    Discrimination and calibration are read off the clean test set at 100 % of the labels.
    ``retention`` is the mean of AUROC_f / AUROC_100 over the fractions f below 100 %. The drops are
    clean minus degraded macro-AUROC at 100 %: mean and worst over the degraded conditions, and the
    mean over the shift targets; ``drop`` is the plain mean of those of the three that the data set
    has. The drop to a shift target is ``source_macro_auroc`` minus ``target_macro_auroc`` of its
    run, both over exactly the classes that are shared and defined on both sides; a table of runs
    without these columns is one whose targets have all the classes, and all of them defined.

    What a data set has is read from the runs of all its encoders: the seeds, the fractions, and
    the degraded conditions (all that are neither ``clean`` nor a shift target). An encoder that
    lacks one of them gets no value for the measures that need it: nothing is averaged over what
    happens to be there. The mean over seeds likewise needs every seed.

    Args:
        runs: the table ``runs``.
        scoring: which measure makes each axis, and its anchors.
        shift_targets: by data set, the conditions that are other institutions.

    Returns:
        The table ``axes``, sorted by encoder, data set and seed: ``encoder, dataset, seed`` (−1 for
        the mean over seeds), the measures, ``axis_<name>`` in [0, 1] (made from the measures of the
        same row), and ``missing``, which says why a measure of the row is absent.

    Raises:
        ValueError: a column is absent, a run occurs twice, a seed is negative, or a data set is
            called ``aggregate``.
    """
    sides = [name for name in BOTH_SIDES if name in runs.columns]
    runs = _checked_runs(runs, ["macro_auroc", "ece", *(BOTH_SIDES if sides else ())])
    if (runs["seed"] < 0).any():
        raise ValueError(f"seeds must not be negative, got {runs['seed'].min()}")
    if (runs["dataset"] == AGGREGATE).any():
        raise ValueError(f"{AGGREGATE!r} is reserved and cannot be the name of a data set")
    records = []
    for dataset, of_dataset in runs.groupby("dataset", sort=True):
        plan = MeasurePlan.of(of_dataset, shift_targets.get(str(dataset), ()))
        for encoder, of_encoder in of_dataset.groupby("encoder", sort=True):
            ids = {"encoder": encoder, "dataset": dataset}
            by_seed = dict(iter(of_encoder.groupby("seed")))
            records += [
                ids | {"seed": seed} | _measures(by_seed.get(seed), plan) for seed in plan.seeds
            ]
    return finish_axes(pd.DataFrame(records), scoring)


def finish_axes(measures: pd.DataFrame, scoring: Scoring) -> pd.DataFrame:
    """Add the rows of seed means and the normalised axes to the measures of single seeds."""
    means = [
        {"encoder": encoder, "dataset": dataset, "seed": SEED_MEAN}
        | {name: _mean(of_pair[name].tolist()) for name in MEASURES}
        | {"missing": _join(zip(of_pair["seed"], of_pair["missing"], strict=True))}
        for (encoder, dataset), of_pair in measures.sort_values("seed").groupby(
            ["encoder", "dataset"], sort=True
        )
    ]
    table = pd.concat([measures, pd.DataFrame(means)], ignore_index=True)
    for name, axis in scoring.axes.items():
        table[f"axis_{name}"] = axis.normalise(table[axis.measure])
    table["missing"] = table["missing"].astype("string")
    columns = [
        "encoder", "dataset", "seed", *MEASURES, *(f"axis_{name}" for name in scoring.axes),
        "missing",
    ]  # fmt: skip
    return table.sort_values(["encoder", "dataset", "seed"], ignore_index=True)[columns]


@dataclass(frozen=True)
class MeasurePlan:
    """What the runs of one data set, over all its encoders, consist of."""

    seeds: list[int]
    percents: list[int]
    """Label fractions below 100 %, ascending."""
    degraded: list[str]
    targets: list[str]

    @classmethod
    def of(cls, runs: pd.DataFrame, targets: Iterable[str]) -> "MeasurePlan":
        targets = sorted(targets)
        percents = runs.loc[(runs["condition"] == CLEAN) & (runs["percent"] < 100), "percent"]
        conditions = set(runs.loc[runs["percent"] == 100, "condition"])
        return cls(
            seeds=sorted(int(seed) for seed in runs["seed"].unique()),
            percents=sorted(int(percent) for percent in percents.unique()),
            degraded=sorted(conditions - {CLEAN} - set(targets)),
            targets=targets,
        )

    @classmethod
    def by_dataset(
        cls, runs: pd.DataFrame, shift_targets: Mapping[str, Sequence[str]]
    ) -> dict[str, "MeasurePlan"]:
        """By data set of the table of runs."""
        return {
            str(dataset): cls.of(rows, shift_targets.get(str(dataset), ()))
            for dataset, rows in runs.groupby("dataset", sort=True)
        }

    @property
    def runs(self) -> list[RunKey]:
        """The runs that the measures of one encoder and seed need."""
        conditions = [CLEAN, *self.degraded, *self.targets]
        return [(CLEAN, percent) for percent in self.percents] + [
            (condition, 100) for condition in conditions
        ]


def _measures(runs: pd.DataFrame | None, plan: MeasurePlan) -> dict[str, float | str | None]:
    """Measures of one encoder, data set and seed, and why any is missing."""
    auroc: dict[RunKey, float] = {}
    on_both_sides: dict[RunKey, float] = {}
    ece = math.nan
    if runs is not None:
        keys = list(zip(runs["condition"], map(int, runs["percent"]), strict=True))
        auroc = dict(zip(keys, map(float, runs["macro_auroc"]), strict=True))
        ece = dict(zip(keys, map(float, runs["ece"]), strict=True)).get((CLEAN, 100), math.nan)
        if BOTH_SIDES[0] in runs.columns:
            source, target = (runs[name] for name in BOTH_SIDES)
            on_both_sides = dict(zip(keys, map(float, source - target), strict=True))
    clean = auroc.get((CLEAN, 100), math.nan)
    # AUROC_source − AUROC_target, over the classes of both, of each shift target.
    shifted = [
        on_both_sides.get((name, 100), clean - auroc.get((name, 100), math.nan))
        for name in plan.targets
    ]
    found = measures_of(auroc, ece, shifted, plan)
    return {**found, "missing": _why_missing(auroc, ece, shifted, plan)}


def measures_of(
    auroc: Mapping[RunKey, Value], ece: Value, shifted: Sequence[Value], plan: MeasurePlan
) -> dict[str, Value]:
    """The measures of a cell from its macro-AUROCs, ECE and drops to the shift targets.

    Values are numbers, or arrays of one shape (a value for each replicate and seed).

    Args:
        auroc: macro-AUROC by condition and percent of labels; what is absent counts as undefined.
        ece: on the clean test set, at 100 % of the labels.
        shifted: the drop to each of the plan's targets.
    """
    clean = auroc.get((CLEAN, 100), math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        # AUROC_f / AUROC_100 of each fraction f, undefined where AUROC_100 is 0
        by = np.where(np.equal(clean, 0.0), math.nan, clean)
        retained = [auroc.get((CLEAN, percent), math.nan) / by for percent in plan.percents]
    # AUROC_clean − AUROC_condition of each degradation
    degraded = [clean - auroc.get((name, 100), math.nan) for name in plan.degraded]
    parts: dict[str, Value] = {}
    if degraded:
        parts |= {"mean_drop": _mean(degraded), "worst_drop": reduce(np.maximum, degraded)}
    if shifted:
        parts |= {"shift_drop": _mean(shifted)}
    absent = {"mean_drop": math.nan, "worst_drop": math.nan, "shift_drop": math.nan}
    return {
        "macro_auroc": clean,
        "ece": ece,
        "retention": _mean(retained),
        **(absent | parts),
        "drop": _mean(list(parts.values())),
    }


def _why_missing(
    auroc: Mapping[RunKey, float], ece: float, shifted: Sequence[float], plan: MeasurePlan
) -> str | None:
    reasons = []
    if not plan.percents:
        reasons.append("no label fraction below 100 %")
    if not plan.degraded and not plan.targets:
        reasons.append("no degraded condition and no shift target")
    absent = [key for key in plan.runs if key not in auroc]
    undefined = [key for key in plan.runs if math.isnan(auroc.get(key, 0.0))]
    for reason, keys in (("no run", absent), ("macro-AUROC undefined", undefined)):
        if keys:
            condition, percent = keys[0]
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            reasons.append(f"{reason}: {condition} at {percent} %{more}")
    clean = auroc.get((CLEAN, 100))
    for target, drop in zip(plan.targets, shifted, strict=True):
        known = auroc.get((target, 100), math.nan)
        if math.isnan(drop) and not math.isnan(known) and clean is not None:
            reasons.append(f"no class defined on both sides: {target} at 100 %")
    if clean == 0:
        reasons.append("retention undefined: macro-AUROC 0 at 100 %")
    if clean is not None and math.isnan(ece):
        reasons.append("ECE undefined")
    return "; ".join(reasons) or None


def _mean(values: Sequence[Value]) -> Value:
    """Mean by plain summation in the given order; NaN of nothing."""
    return sum(values[1:], values[0]) / len(values) if len(values) else math.nan


def _join(reasons: Iterable[tuple[int, str | None]]) -> str | None:
    """One reason for the mean over seeds; a reason that seeds share is given once.

    >>> _join([(0, "ECE undefined"), (1, None), (2, "ECE undefined")])
    'seed 0, 2: ECE undefined'
    """
    seeds: dict[str, list[int]] = {}
    for seed, reason in reasons:
        if isinstance(reason, str):
            seeds.setdefault(reason, []).append(int(seed))
    return (
        "; ".join(
            f"seed {', '.join(map(str, numbers))}: {reason}" for reason, numbers in seeds.items()
        )
        or None
    )


def _checked_runs(runs: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    absent = [name for name in (*RUN_KEY, *metrics) if name not in runs.columns]
    if absent:
        raise ValueError(f"the table of runs lacks the columns {', '.join(absent)}")
    if runs.empty:
        raise ValueError("the table of runs is empty")
    twice = runs[runs.duplicated(RUN_KEY)]
    if len(twice):
        first = ", ".join(f"{name} {twice.iloc[0][name]}" for name in RUN_KEY)
        raise ValueError(f"the table of runs has a run twice: {first}")
    typed = runs.astype(dict.fromkeys(metrics, "float64"))
    return typed.sort_values(RUN_KEY, ignore_index=True)
