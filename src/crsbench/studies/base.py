"""A study's files, and what several studies use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.config.overlap import Overlaps
from crsbench.core.files import (
    BLANK_CHECKSUM,
    atomic_write,
    checksummed,
    read_checksummed,
    write_table,
)
from crsbench.core.plotting import house_style, svg_text
from crsbench.studies.registry import Finding, Study

MIN_ENCODERS = 3
"""Below it a correlation of rankings says nothing, so none is made."""

MEDICAL_GROUPS = ("medical", "specialist")


def write_study(
    table_file: Path | str,
    figure_file: Path | str,
    name: str,
    study: Study,
    overlaps: Overlaps | None = None,
) -> None:
    """Write a study's table (sentence and findings in its metadata) and its figure as SVG.

    overlaps: of the panel, for the table's column `overlap`.
    """
    from matplotlib.figure import Figure

    findings = {key: _plain(value) for key, value in study.findings.items()}
    said = {"sentence": study.sentence, "findings": findings, "drawn": study.draw is not None}
    metadata = {"study": name, **said}
    with house_style():
        figure = Figure(layout="constrained")
        if study.draw is None:
            figure.set_size_inches(6, 1.2)
            figure.text(0.5, 0.5, study.sentence, ha="center", va="center", wrap=True)
        else:
            study.draw(figure)
        svg = svg_text(figure)
    with atomic_write(figure_file) as part:
        part.write_bytes(checksummed(b"%s<!-- %s -->\n" % (svg.encode(), BLANK_CHECKSUM)))
    table = study.table if overlaps is None else overlaps.add_to(study.table)
    write_table(table_file, table, metadata)


def read_figure(figure_file: Path | str) -> str:
    """The `<svg>` element of a study's figure; UserError when it is not what was written."""
    return read_checksummed(figure_file).rpartition(b"<!--")[0].decode()


def mean_by_encoder(values: pd.DataFrame, column: str) -> pd.Series:
    """Mean of a column over the data sets that each encoder has; missing if one is missing."""
    by_encoder = values.sort_values("dataset").groupby("encoder")[column]
    return by_encoder.apply(lambda of: sum(of.tolist()) / len(of))


def too_few(count: int) -> str:
    """Why a ranking of so few encoders is not compared with another."""
    return f"the panel has {count} ranked encoders, and a comparison needs {MIN_ENCODERS}"


def _plain(value: Any) -> Finding:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return int(value)
