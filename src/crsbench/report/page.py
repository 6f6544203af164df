"""The page: one file with all tables, figures and charts, which needs no network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from crsbench.config.overlap import mark, summary
from crsbench.core.files import atomic_write
from crsbench.core.names import AGGREGATE
from crsbench.core.plotting import GROUP_COLOURS
from crsbench.report import charts, headline
from crsbench.report.leaderboard import AXIS_COLUMNS, MARKS, leaderboards, marks_of
from crsbench.report.material import Material
from crsbench.report.views import SHOWN_ROWS, download, svg_image, svg_size, table_view
from crsbench.studies.registry import THEMES, studies

COVERED = ("movers", "label_efficiency", "weight_sensitivity")
"""Studies that an interactive chart shows too: their printed figure is folded away."""

WIDE = 1.8
"""A figure of this aspect or wider takes the page's whole width."""

NO_RESULT = "Not run"


def write_report(output: Path | str, material: Material) -> None:
    """Write the page; the same material gives the same bytes."""
    html = (
        _environment()
        .get_template("page.html.j2")
        .render(
            css=_asset("page.css"),
            script=_asset("page.js"),
            vega=_vega(),
            data=_page_data(material),
            headline=_headline(material),
            boards=leaderboards(material),
            joint="joint_bootstrap" in material.tables,
            axis_titles=AXIS_COLUMNS,
            marks=MARKS,
            group_colours=GROUP_COLOURS,
            themes=_themes(material),
            scorecard=_scorecard(material),
            audits=material.audits,
            gallery=material.gallery,
            provenance=material.provenance,
            titles=material.titles,
            marks_of={name: marks_of(material, name) for name in material.known},
            facts=_facts(material),
            downloads=_downloads(material),
            encoders=charts.encoder_entries(material),
            synthetic=material.synthetic,
            left_out=_left_out(material),
            scoring=material.scoring,
        )
    )
    with atomic_write(output) as part:
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
    environment.filters["short"] = lambda value: "–" if pd.isna(value) else f"{value:.2f}"
    environment.filters["size"] = lambda n: f"{n / 1e6:.1f} MB" if n > 1e6 else f"{n / 1e3:.0f} kB"
    environment.filters["thousands"] = lambda n: f"{n:,}"
    return environment


def _asset(name: str) -> str:
    return (files("crsbench.report") / "templates" / name).read_text("utf-8")


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs no network."""
    import vl_convert

    script: str = vl_convert.javascript_bundle()
    if "</script" in script.lower():
        raise ValueError("the Vega bundle cannot stand in a page: it has a closing script tag")
    return script


def _page_data(material: Material) -> dict[str, Any]:
    """What the page's script reads."""
    weights = material.scoring.weights
    return {
        "encoders": charts.encoder_entries(material),
        "datasets": [
            {"name": name, "title": spec["title"]} for name, spec in material.datasets.items()
        ],
        "titles": material.titles,
        "overlaps": _overlaps(material),
        "rows": charts.chart_rows(material),
        "specs": charts.specifications(),
        "components": charts.components(material),
        "weights": [weights.dominance, weights.proximity, weights.worst_axis],
    }


def _overlaps(material: Material) -> dict[str, dict[str, str]]:
    """By encoder and data set, the aggregate too: whether pre-training had the images."""
    return {
        encoder: {
            dataset: summary(material.overlaps.of(encoder, dataset).values())
            for dataset in (*material.datasets, AGGREGATE)
        }
        for encoder in material.encoders
    }


def _headline(material: Material) -> dict[str, str]:
    crs, titles = material.tables["crs"], material.titles
    joint = material.tables.get("joint_bootstrap")
    if joint is None:
        main = headline.headline(crs, material.tables["bootstrap_pairs"], titles)
    else:
        main = headline.with_ranks(crs, joint, material.tables["joint_bootstrap_pairs"], titles)
    agreement = material.studies.get("rank_agreement")
    return {
        "main": main,
        "tier": headline.first_tier(crs, titles) if joint is None else "",
        "leaders": headline.by_auroc(crs, titles),
        "agreement": agreement.sentence if agreement else "",
    }


def _left_out(material: Material) -> list[dict[str, str]]:
    titles = material.titles
    return [
        {"cell": f"{titles.get(encoder, encoder)} on {titles[dataset]}", "reason": reason}
        for (encoder, dataset), reason in material.left_out.items()
    ]


def _themes(material: Material) -> list[dict[str, Any]]:
    """The sections with their studies, in the order of the themes; a theme without any is kept
    for its charts."""
    known = studies()
    by_theme: dict[str, list[dict[str, Any]]] = {theme: [] for theme in THEMES}
    for name, study in material.studies.items():
        note = known[name]
        width, height = svg_size(study.figure) if study.figure else (0.0, 1.0)
        by_theme[note.theme].append(
            {
                "name": name,
                "title": note.title,
                "limit": note.limit,
                "sentence": study.sentence,
                "made": not study.sentence.startswith(NO_RESULT),
                "covered": name in COVERED,
                "figure": svg_image(study.figure) if study.figure else "",
                "width": round(width),
                "wide": width > WIDE * height and name not in COVERED,
                "table": _study_table(material, study.table),
                "download": download(name, material.overlaps.add_to(study.table)),
            }
        )
    return [
        {"name": theme, "title": title, "studies": by_theme[theme]}
        for theme, title in THEMES.items()
    ]


def _study_table(material: Material, table: pd.DataFrame) -> dict[str, Any]:
    """The study's table under the shown names, with the mark of overlap beside each encoder's."""
    table = table.drop(columns="overlap", errors="ignore")
    found = material.overlaps.of_rows(table.head(SHOWN_ROWS)) if "encoder" in table else []
    marks = [mark(one, material.titles) for one in found]
    return table_view(table.replace(material.titles), marks=marks)


def _scorecard(material: Material) -> dict[str, Any]:
    table = material.tables["reproduction"]
    named = table["published_name"].notna() | table["ours_name"].notna()
    both = table["difference"].notna() | (named & table["ours_name"].notna())
    return {
        "view": table_view(table, limit=len(table)),
        "n": len(table),
        "n_ours": int(both.sum()),
        "same_panel": bool(table["same_panel"].any()),
    }


def _facts(material: Material) -> dict[str, Any]:
    runs = material.tables["runs"]
    return {
        "runs": len(runs),
        "encoders": int(runs["encoder"].nunique()),
        "seeds": int(runs["seed"].nunique()),
        "conditions": int(runs["condition"].nunique()),
        "percents": sorted(runs["percent"].unique().tolist()),
        "capped": int(runs["capped"].sum()),
        "unconverged": int((~runs["converged"].astype(bool)).sum()),
        "partial": int((runs["n_classes_defined"] < runs["n_classes"]).sum()),
        "reference": material.tables["crs"]["reference"].iloc[0],
    }


def _downloads(material: Material) -> list[dict[str, Any]]:
    add = material.overlaps.add_to
    return [download(name, add(table)) for name, table in material.tables.items()]
