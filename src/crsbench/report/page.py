"""The page: a leaderboard, the four axes by data set, one profile plot; no network needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from crsbench.files import whole_or_absent
from crsbench.report.figures import profile_plot
from crsbench.score import AGGREGATE, SEED_MEAN

MARKS = {
    "untrained": "random weights, never trained",
    "floor": "a floor: scored against the panel, not part of it, and without a rank",
}


@dataclass(frozen=True)
class Tables:
    """The tables that the page is made from."""

    runs: pd.DataFrame
    axes: pd.DataFrame
    crs: pd.DataFrame


def write_report(
    output: Path | str,
    tables: Tables,
    encoders: Mapping[str, Mapping[str, Any]],
    datasets: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the page; encoders and datasets are their registry entries in the panel's order."""
    axes = tables.axes[tables.axes["seed"] == SEED_MEAN]
    floors = [name for name, spec in encoders.items() if spec["group"] == "floor"]
    titles = {name: spec["title"] for name, spec in encoders.items()}
    shown = {name: spec["title"] for name, spec in datasets.items()}
    page = _environment().get_template("page.html.j2")
    html = page.render(
        headline=_headline(tables.crs, titles),
        synthetic=[spec["title"] for spec in datasets.values() if spec.get("reader") == "phantom"],
        leaderboard=_leaderboard(tables.crs, encoders, AGGREGATE),
        datasets=[
            {
                "title": title,
                "rows": _leaderboard(tables.crs, encoders, name, axes[axes["dataset"] == name]),
            }
            for name, title in shown.items()
        ],
        figure=profile_plot(axes, titles, shown, floors),
        marks=MARKS,
        n_runs=len(tables.runs),
        n_seeds=tables.runs["seed"].nunique(),
        n_capped=int(tables.runs["capped"].sum()),
        n_unconverged=int((~tables.runs["converged"]).sum()),
        n_partial=int((tables.runs["n_classes_defined"] < tables.runs["n_classes"]).sum()),
        reference=tables.crs["reference"].iloc[0],
    )
    with whole_or_absent(output) as part:
        part.write_text(html, encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("crsbench.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "–" if pd.isna(value) else f"{value:.3f}"
    environment.filters["rank"] = lambda value: "–" if pd.isna(value) else str(int(value))
    return environment


def _headline(crs: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Who leads by CRS and who by AUROC, in words, ties included."""
    ranked = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"]]

    def leaders(rank: str, measure: str) -> str:
        first = ranked[ranked[rank] == 1]
        names = " and ".join(titles[name] for name in first["encoder"])
        return f"{names} ({first[measure].iloc[0]:.3f})" if len(first) else "nobody"

    return (
        f"Highest Clinical Reliability Score: {leaders('crs_rank', 'crs')}. "
        f"Highest macro-AUROC: {leaders('auroc_rank', 'macro_auroc')}."
    )


def _leaderboard(
    crs: pd.DataFrame,
    encoders: Mapping[str, Mapping[str, Any]],
    dataset: str,
    axes: pd.DataFrame | None = None,
) -> list[dict[str, Any]]:
    """Rows in the order of rank, floors last; with `axes`, their measures beside the score."""
    table = crs[crs["dataset"] == dataset]
    if axes is not None:
        measures = axes.drop(columns=["dataset", "seed", "macro_auroc", "missing"], errors="ignore")
        table = table.merge(measures, on="encoder", validate="one_to_one")
    table = table.sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    rows = table.to_dict("records")
    for row in rows:
        spec = encoders[row["encoder"]]
        row["title"] = spec["title"]
        row["group"] = spec["group"]
        row["marks"] = [
            mark
            for mark, applies in (
                ("untrained", spec.get("weights") == "untrained"),
                ("floor", spec["group"] == "floor"),
            )
            if applies
        ]
    return rows
