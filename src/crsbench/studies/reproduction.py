"""The reproduction scorecard: every published figure beside this run's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.config.schema import read_closed
from crsbench.core.files import atomic_write, read_table
from crsbench.core.names import AGGREGATE
from crsbench.score import Scoring
from crsbench.studies.base import Finding

COLUMNS = [
    "figure", "published", "ours", "difference", "published_name", "ours_name", "same_panel",
    "note",
]  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The content of ``config/published.yaml``."""

    encoders: frozenset[str]
    datasets: frozenset[str]
    n_seeds: int
    figures: Mapping[str, float | int | str]
    """By dotted name, in the order of the file."""


def load_published(path: str | Path) -> Published:
    """Read the published figures.

    Raises:
        UserError: as :func:`crsbench.config.schema.read_closed`.
    """
    content = read_closed(path, "published")
    panel = content["panel"]
    names = frozenset(panel["encoders"]), frozenset(panel["datasets"])
    return Published(*names, panel["seeds"], _flat(content["figures"]))


@dataclass(frozen=True, eq=False)
class OwnFigures:
    """What a run has to set beside the published figures."""

    findings: Mapping[str, Finding]
    """By the dotted names of the published figures."""
    reasons: Mapping[str, str]
    """Why a study has no findings, by study."""
    encoders: frozenset[str]
    datasets: frozenset[str]
    n_seeds: int
    synthetic: bool


def scorecard(published: Published, own: OwnFigures) -> pd.DataFrame:
    """The table ``reproduction``: one published figure a row, in the order of the file.

    Numbers stand in ``published`` and ``ours``, names in ``published_name`` and ``ours_name`` (both
    as names if either is one). Nothing is filled in: a figure that this run does not have is
    missing, and ``note`` begins with "not run" and says why. ``same_panel`` is true if encoders
    (except floors), data sets and number of seeds are the published ones and no data are synthetic.
    """
    other = _differences(published, own)
    rows = []
    for figure, theirs in published.figures.items():
        ours = own.findings.get(figure)
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"figure": figure, "same_panel": not other}
        if isinstance(theirs, str) or isinstance(ours, str):
            row["published_name"] = str(theirs)
            row["ours_name"] = None if ours is None else str(ours)
        else:
            row |= {"published": theirs, "ours": ours}
            row["difference"] = None if ours is None else ours - theirs
        if ours is None:
            row["note"] = _why_absent(figure, published, own)
        elif other:
            row["note"] = f"another panel: {other}"
        rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    numbers = dict.fromkeys(("published", "ours", "difference"), "float64")
    names = dict.fromkeys(("figure", "published_name", "ours_name", "note"), "string")
    return table.astype(numbers | names | {"same_panel": bool})


def write_tsv(path: str | Path, table: pd.DataFrame) -> None:
    """Write the scorecard as tab-separated text; an empty field is a value that does not exist."""
    with atomic_write(path) as part:
        table.to_csv(part, sep="\t", index=False, float_format="%.6g", lineterminator="\n")


def own_figures(
    tables: Mapping[str, pd.DataFrame],
    scoring: Scoring,
    study_files: Sequence[str | Path],
    floors: Collection[str],
    synthetic: bool,
) -> OwnFigures:
    """Gather a run's figures from its tables and from the findings of its studies.

    Args:
        tables: ``runs, crs, bootstrap, bootstrap_pairs`` by name.
        scoring: its weights are a published figure.
        study_files: tables of studies, with their findings in the metadata.
        floors: encoders that count as no part of the panel.
        synthetic: whether a data set of the run is synthetic.
    """
    runs = tables["runs"][~tables["runs"]["encoder"].isin(list(floors))]
    findings = _of_grid(runs) | _prefixed("weights", asdict(scoring.weights))
    findings |= _of_leaders(tables["crs"]) | _of_bootstrap(tables)
    reasons = {}
    for file in study_files:
        _, metadata = read_table(file)
        if metadata["findings"]:
            findings |= _prefixed(metadata["study"], metadata["findings"])
        else:
            reasons[metadata["study"]] = metadata["sentence"]
    return OwnFigures(
        findings,
        reasons,
        frozenset(runs["encoder"].unique()),
        frozenset(runs["dataset"].unique()),
        int(runs["seed"].nunique()),
        synthetic,
    )


def _of_grid(runs: pd.DataFrame) -> dict[str, Finding]:
    return {
        "grid.encoders": int(runs["encoder"].nunique()),
        "grid.datasets": int(runs["dataset"].nunique()),
        "grid.cells": len(runs[["encoder", "dataset"]].drop_duplicates()),
        "grid.seeds": int(runs["seed"].nunique()),
        "grid.runs": len(runs),
        "grid.seed_aggregated_rows": len(
            runs[["encoder", "dataset", "condition", "percent"]].drop_duplicates()
        ),
    }


def _of_leaders(crs: pd.DataFrame) -> dict[str, Finding]:
    rows = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"]].set_index("encoder")
    found = {}
    for name, column in (("auroc", "macro_auroc"), ("crs", "crs")):
        found |= _prefixed(f"leaders.{name}", rows[column].dropna().to_dict())
    return found


def _of_bootstrap(tables: Mapping[str, pd.DataFrame]) -> dict[str, Finding]:
    table, pairs = tables["bootstrap"], tables["bootstrap_pairs"]
    rows = table[(table["dataset"] == AGGREGATE) & table["p_rank1"].notna()].set_index("encoder")
    found: dict[str, Finding] = {}
    for column in ("p_rank1", "p_top3"):
        found |= _prefixed(f"bootstrap.{column}", rows[column].to_dict())
    if len(rows):
        found["bootstrap.replicates"] = int(rows["replicates"].iloc[0])
    for pair in pairs[pairs["dataset"] == AGGREGATE].itertuples():
        first, second = f"{pair.encoder_a}.{pair.encoder_b}", f"{pair.encoder_b}.{pair.encoder_a}"
        found |= _prefixed(f"bootstrap.difference.{first}", {"low": pair.low, "high": pair.high})
        found |= _prefixed(f"bootstrap.difference.{second}", {"low": -pair.high, "high": -pair.low})
    return found


def _differences(published: Published, own: OwnFigures) -> str:
    """What of the panel is not as published, in words; empty if nothing."""
    sentences = []
    if own.encoders != published.encoders:
        shared = len(own.encoders & published.encoders)
        sentences.append(f"{len(own.encoders)} encoders, {shared} of them published")
    if own.datasets != published.datasets:
        shared = len(own.datasets & published.datasets)
        sentences.append(f"{len(own.datasets)} data sets, {shared} of them published")
    if own.n_seeds != published.n_seeds:
        sentences.append(f"{own.n_seeds} seeds, not {published.n_seeds}")
    if own.synthetic:
        sentences.append("synthetic data")
    return "; ".join(sentences)


def _why_absent(figure: str, published: Published, own: OwnFigures) -> str:
    study, *names = figure.split(".")
    if study in own.reasons:
        return "not run: " + own.reasons[study].removeprefix("Not run: ").removesuffix(".")
    if not any(name.split(".")[0] == study for name in own.findings):
        return f"not run: this run has no results for {study}"
    absent = [
        name
        for name in names
        if name in (published.encoders - own.encoders) | (published.datasets - own.datasets)
    ]
    if absent:
        return f"not run: this run has no {' and no '.join(absent)}"
    return "not run: undefined for this run's panel"


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Finding]:
    return {f"{prefix}.{name}": value for name, value in values.items()}
