"""The leaderboard's rows: components, axes with intervals, marks, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.overlap import mark
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.metrics.statistics import t_interval
from crsbench.report.material import Material

AXIS_COLUMNS = {
    "axis_discrimination": "discrimination",
    "axis_calibration": "calibration",
    "axis_supervision": "label efficiency",
    "axis_robustness": "robustness",
}
MEASURE_COLUMNS = {
    "ece": "ECE",
    "retention": "retention",
    "mean_drop": "mean drop",
    "worst_drop": "worst drop",
    "shift_drop": "shift drop",
}
MARKS = {
    "seen": "pre-training is known to have included these test images, or those of a shift target",
    "seen?": "whether it did is not known",
    "untrained": "random weights, never trained",
    "floor": "a floor: scored against the panel, not part of it, and without a rank",
    "frozen": "of the frozen reference; not run here",
}
NO_VALUE = "The data set has no such value."
NO_RANK = "A floor is not ranked."
ONE_SEED = "A single seed cannot be resampled."
NO_CELL = "No cell: the encoder's published interface is not meant for these images."


@dataclass(frozen=True)
class Entry:
    """A number, its interval, and why it is missing where it is."""

    value: float | None
    low: float | None = None
    high: float | None = None
    missing: str = ""


def leaderboards(material: Material) -> list[dict[str, Any]]:
    """The aggregate's leaderboard and one for each data set."""
    named = {AGGREGATE: "All data sets"}
    named |= {name: spec["title"] for name, spec in material.datasets.items()}
    return [_view(material, name, title) for name, title in named.items()]


def seed_interval(values: np.ndarray) -> tuple[float, float] | None:
    """Student's 95 % interval of a mean over seeds, within [0, 1]; None below two seeds.

    values: (S,) one normalised axis per seed. Mean ± t(0.975, S − 1) · sd / √S.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2 or np.isnan(values).any():
        return None
    _, low, high = t_interval(values)
    return max(0.0, low), min(1.0, high)


def axis_cells(axes: pd.DataFrame, dataset: str) -> dict[str, dict[str, Entry]]:
    """By encoder and axis: the seed-mean value with its interval; the aggregate is the mean over
    the data sets that an encoder has, seed by seed.

    axes: the table `axes`.
    """
    if dataset != AGGREGATE:
        axes = axes[axes["dataset"] == dataset]
    by_seed = axes.groupby(["encoder", "seed"], sort=True)[list(AXIS_COLUMNS)].mean()
    absent = axes.groupby(["encoder", "seed"], sort=True)[list(AXIS_COLUMNS)].agg(
        lambda column: column.isna().any()
    )
    by_seed = by_seed.mask(absent.astype(bool))
    cells: dict[str, dict[str, Entry]] = {}
    for encoder, rows in by_seed.groupby(level="encoder"):
        rows = rows.droplevel("encoder")
        of_encoder = cells[str(encoder)] = {}
        for name in AXIS_COLUMNS:
            mean = rows.at[SEED_MEAN, name]
            interval = seed_interval(rows.drop(SEED_MEAN)[name].to_numpy())
            value = None if pd.isna(mean) else float(mean)
            of_encoder[name] = Entry(value, *(interval or (None, None)))
    return cells


def marks_of(material: Material, encoder: str, dataset: str = AGGREGATE) -> list[dict[str, str]]:
    """The marks beside an encoder's name: of what it is, and of images that it may have seen."""
    spec = material.known[encoder]
    applies = {
        "untrained": spec.get("weights") == "untrained",
        "floor": spec["group"] == "floor",
        "frozen": spec["group"] == "frozen",
    }
    marks = [{"label": name, "meaning": MARKS[name]} for name in applies if applies[name]]
    seen = mark(material.overlaps.of(encoder, dataset), material.titles)
    return marks + ([seen] if seen else [])


def _view(material: Material, dataset: str, title: str) -> dict[str, Any]:
    crs = material.tables["crs"]
    own = crs[crs["dataset"] == dataset]
    joint = material.tables.get("joint_bootstrap")
    intervals = material.tables["bootstrap"] if joint is None else joint
    columns = ["encoder", "crs_low", "crs_high", "p_rank1", "p_top3"]
    columns += [] if joint is None else ["rank_low", "rank_high"]
    own = own.merge(intervals.loc[intervals["dataset"] == dataset, columns], "left", "encoder")
    means = material.seed_means
    measures = means[means["dataset"] == dataset]
    kept = ["encoder", *(name for name in MEASURE_COLUMNS if dataset != AGGREGATE)]
    own = own.merge(measures[kept], "left", "encoder") if dataset != AGGREGATE else own
    own = own.sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    axes = axis_cells(material.tables["axes"], dataset)
    rows = [
        _row(row, material.known[row["encoder"]], axes, marks_of(material, row["encoder"], dataset))
        for row in own.to_dict("records")
    ]
    lacking = set(material.encoders) - set(own["encoder"])
    rows += [
        _row_without_cell(name, spec, marks_of(material, name, dataset))
        for name, spec in material.encoders.items()
        if name in lacking
    ]
    return {
        "name": dataset,
        "title": title,
        "rows": rows,
        "measures": [] if dataset == AGGREGATE else list(MEASURE_COLUMNS.items()),
    }


def _row(
    row: Mapping[str, Any],
    spec: Mapping[str, Any],
    axes: Mapping[str, Mapping[str, Entry]],
    marks: list[dict[str, str]],
) -> dict[str, Any]:
    encoder = row["encoder"]
    reason = row["missing"] if isinstance(row["missing"], str) else ""

    def cell(name: str, low: str = "", high: str = "", why: str = NO_VALUE) -> Entry:
        values = [row.get(key) if key else None for key in (name, low, high)]
        value, *ends = (None if pd.isna(v) else float(v) for v in values)
        return Entry(value, *ends, missing=reason or why)

    of_axes = axes.get(encoder, {})
    return {
        "encoder": encoder,
        "title": spec["title"],
        "group": spec["group"],
        "floor": bool(row["floor"]),
        "marks": marks,
        "tier": None if pd.isna(row["tier"]) else int(row["tier"]),
        "ranks": ranks_of(row),
        "crs_rank": None if pd.isna(row["crs_rank"]) else int(row["crs_rank"]),
        "auroc_rank": None if pd.isna(row["auroc_rank"]) else int(row["auroc_rank"]),
        "crs": cell("crs", "crs_low", "crs_high"),
        "p_rank1": cell("p_rank1", why=NO_RANK if row["floor"] else ONE_SEED),
        **{name: cell(name) for name in ("dominance", "proximity", "worst_axis", "macro_auroc")},
        "axes": {
            name: of_axes.get(name, Entry(None, missing=reason or NO_VALUE))
            for name in AXIS_COLUMNS
        },
        "measures": {name: cell(name) for name in MEASURE_COLUMNS},
        "without_cell": "",
    }


def ranks_of(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The best and the worst rank that the joint bootstrap leaves an encoder, if there is one."""
    ends = [row.get(name) for name in ("rank_low", "rank_high")]
    return None if any(pd.isna(end) for end in ends) else (int(ends[0]), int(ends[1]))


def _row_without_cell(
    name: str, spec: Mapping[str, Any], marks: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "encoder": name,
        "title": spec["title"],
        "group": spec["group"],
        "floor": spec["group"] == "floor",
        "marks": marks,
        "tier": None,
        "ranks": None,
        "crs_rank": None,
        "auroc_rank": None,
        "without_cell": NO_CELL,
    }
