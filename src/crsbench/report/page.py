"""The page: a leaderboard, the four axes by data set, one profile plot; no network needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from crsbench.files import whole_or_absent
from crsbench.report.figures import profile_plot
from crsbench.report.overlap import overlap_table
from crsbench.score import AGGREGATE, SEED_MEAN

MARKS = {
    "seen": "pre-training is known to have included these test images, or those of a shift target",
    "seen?": "whether it did is not known",
    "untrained": "random weights, never trained",
    "floor": "a floor: scored against the panel, not part of it, and without a rank",
    "frozen": "of the frozen reference; not run here",
}


@dataclass(frozen=True)
class Tables:
    """The tables that the page is made from."""

    runs: pd.DataFrame
    axes: pd.DataFrame
    crs: pd.DataFrame
    bootstrap: pd.DataFrame


def write_report(
    output: Path | str,
    tables: Tables,
    encoders: Mapping[str, Mapping[str, Any]],
    datasets: Mapping[str, Mapping[str, Any]],
    targets: Mapping[str, Mapping[str, Any]],
    rank_agreement: str,
    audits: Sequence[Mapping[str, Any]],
) -> None:
    """Write the page; encoders, datasets and targets are registry entries in the panel's order.

    rank_agreement: the sentence of the study of that name; audits: of the data sets and targets.
    """
    encoders = _with_frozen(encoders, tables.crs)
    axes = tables.axes[tables.axes["seed"] == SEED_MEAN]
    floors = [name for name, spec in encoders.items() if spec["group"] == "floor"]
    titles = {name: spec["title"] for name, spec in encoders.items()}
    shown = {name: spec["title"] for name, spec in datasets.items()}
    seen = overlap_table(encoders, datasets, targets)
    shown_images = shown | {name: spec["title"] for name, spec in targets.items()}
    page = _environment().get_template("page.html.j2")
    html = page.render(
        headline=_headline(tables.crs, titles),
        verdict=_verdict(tables.crs, titles),
        rank_agreement=rank_agreement,
        synthetic=[spec["title"] for spec in datasets.values() if spec.get("reader") == "phantom"],
        leaderboard=_leaderboard(
            _with_interval(tables), encoders, AGGREGATE, _overlap_marks(seen, shown_images)
        ),
        datasets=[
            {
                "title": title,
                "rows": _leaderboard(
                    tables.crs,
                    encoders,
                    name,
                    _overlap_marks(seen[seen["dataset"] == name], shown_images),
                    axes[axes["dataset"] == name],
                ),
            }
            for name, title in shown.items()
        ],
        figure=profile_plot(axes, titles, shown, floors),
        marks=MARKS,
        audits=audits,
        n_runs=len(tables.runs),
        n_seeds=tables.runs["seed"].nunique(),
        n_capped=int(tables.runs["capped"].sum()),
        n_unconverged=int((~tables.runs["converged"]).sum()),
        n_partial=int((tables.runs["n_classes_defined"] < tables.runs["n_classes"]).sum()),
        reference=tables.crs["reference"].iloc[0],
    )
    with whole_or_absent(output) as part:
        part.write_text(html, encoding="utf-8")


def _overlap_marks(seen: pd.DataFrame, titles: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """By encoder: the mark of test images that pre-training had, or may have had; else none."""
    marks = {}
    for encoder, rows in seen.drop_duplicates(["encoder", "images"]).groupby("encoder"):
        known = rows[rows["included"] == "yes"]
        unknown = rows.loc[rows["included"] == "unknown", "images"].map(titles)
        if len(known):
            named = [
                f"{titles[row.images]} ({row.source})" for row in known.itertuples(index=False)
            ]
            marks[encoder] = {
                "label": "seen",
                "meaning": f"Pre-training included {'; '.join(named)}.",
            }
        elif len(unknown):
            marks[encoder] = {
                "label": "seen?",
                "meaning": f"Whether pre-training included {', '.join(unknown)} is not known.",
            }
    return marks


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("crsbench.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "–" if pd.isna(value) else f"{value:.3f}"
    environment.filters["interval"] = _interval
    environment.filters["rank"] = lambda value: "–" if pd.isna(value) else str(int(value))
    return environment


def _interval(row: Mapping[str, Any]) -> str:
    if pd.isna(row["crs_low"]):
        return "–"
    return f"{row['crs_low']:.3f} to {row['crs_high']:.3f}"


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


def _verdict(crs: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Whether one encoder leads, as far as the seeds can tell."""
    ranked = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"] & crs["tier"].notna()]
    if len(ranked) < 2:
        return "How sure the ranks are is not known: that needs two encoders and two seeds."
    top = ranked[ranked["tier"] == 1].sort_values(["crs_rank", "encoder"])
    names = [titles[name] for name in top["encoder"]]
    if len(names) == 1:
        return f"{names[0]} is separated from all others: it is alone in the first tier."
    return (
        f"There is no single winner: the seeds cannot separate the {len(names)} encoders of the "
        f"first tier, {', '.join(names[:-1])} and {names[-1]}."
    )


def _with_frozen(
    encoders: Mapping[str, Mapping[str, Any]], crs: pd.DataFrame
) -> dict[str, Mapping[str, Any]]:
    """The registry entries and, under their bare names, the frozen panel's other encoders."""
    frozen = sorted(set(crs["encoder"]) - set(encoders))
    return {**encoders, **{name: {"title": name, "group": "frozen"} for name in frozen}}


def _with_interval(tables: Tables) -> pd.DataFrame:
    """The table `crs` with the bootstrap's interval, where there is one."""
    columns = ["encoder", "dataset", "crs_low", "crs_high", "p_rank1"]
    return tables.crs.merge(tables.bootstrap[columns], on=["encoder", "dataset"], how="left")


def _leaderboard(
    crs: pd.DataFrame,
    encoders: Mapping[str, Mapping[str, Any]],
    dataset: str,
    overlaps: Mapping[str, Mapping[str, str]],
    axes: pd.DataFrame | None = None,
) -> list[dict[str, Any]]:
    """Rows in the order of rank, floors last; with `axes`, their measures beside the score."""
    table = crs[crs["dataset"] == dataset]
    if axes is not None:
        measures = axes.drop(columns=["dataset", "seed", "macro_auroc", "missing"], errors="ignore")
        table = table.merge(measures, on="encoder", how="left", validate="one_to_one")
    table = table.sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    rows = table.to_dict("records")
    for row in rows:
        spec = encoders[row["encoder"]]
        row["title"] = spec["title"]
        row["overlap"] = overlaps.get(row["encoder"])
        row["marks"] = [
            mark
            for mark, applies in (
                ("untrained", spec.get("weights") == "untrained"),
                ("floor", spec["group"] == "floor"),
                ("frozen", spec["group"] == "frozen"),
            )
            if applies
        ]
    return rows
