"""Forms that several studies' figures share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from crsbench.core.plotting import COLOURS, DASHES, GROUP_COLOURS
from crsbench.studies.inputs import Inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # a study's module is imported long before anything is drawn
    Axes = Figure = Any

ROW_HEIGHT = 0.22
"""Inches that a row of a dot plot takes."""


def panels(
    figure: Figure, count: int, size: tuple[float, float], share: bool = False
) -> list[Axes]:
    """A row of `count` plots of `size` (inches) each."""
    figure.set_size_inches(size[0] * count, size[1])
    row = figure.subplots(1, count, sharey=share, squeeze=False)[0]
    for panel in row:
        panel.spines[["top", "right"]].set_visible(False)
    return list(row)


def named_points(
    panel: Axes,
    x: Sequence[float],
    y: Sequence[float],
    names: Sequence[str],
    colours: Sequence[str],
) -> None:
    """A scatter plot whose points bear names; a name stands left of its point in the right half."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    panel.scatter(x, y, c=list(colours), s=26, zorder=3)
    middle = (x.min() + x.max()) / 2
    for one_x, one_y, name in zip(x, y, names, strict=True):
        left = one_x > middle
        panel.annotate(
            name,
            (one_x, one_y),
            xytext=(-5 if left else 5, 3),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=7,
        )
    panel.margins(0.12)
    panel.grid(alpha=0.25)


def encoder_points(panel: Axes, inputs: Inputs, x: pd.Series, y: pd.Series) -> None:
    """Two values of each encoder, by which both are indexed."""
    names = [inputs.label(name) for name in x.index]
    named_points(panel, x, y, names, [inputs.colour(name) for name in x.index])


def dataset_panels(
    figure: Figure, inputs: Inputs, table: pd.DataFrame, size: tuple[float, float]
) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """A titled panel a data set, in the table's order, each with its rows."""
    parts = table.groupby("dataset", sort=False)
    for panel, (name, rows) in zip(panels(figure, parts.ngroups, size), parts, strict=True):
        panel.set_title(inputs.title(str(name)))
        yield panel, rows


def line_style(index: int) -> dict[str, str]:
    """Colour and dashes that distinguish eighteen lines."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def group_legend(figure: Figure, groups: Sequence[str]) -> None:
    """A legend of the groups of encoders that occur, in their usual order."""
    from matplotlib.lines import Line2D

    shown = [group for group in GROUP_COLOURS if group in groups]
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=GROUP_COLOURS[group], label=group)
        for group in shown
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)


def dots(
    figure: Figure,
    inputs: Inputs,
    table: pd.DataFrame,
    row: str,
    value: str,
    label: str,
    *,
    line: float | None = None,
    intervals: bool = False,
) -> None:
    """A panel a data set, a line of dots for each value of `row`, a dot an encoder."""
    parts = [(name, of) for name, of in table.groupby("dataset", sort=False)]
    tallest = max(of[row].nunique() for _, of in parts)
    axes = panels(figure, len(parts), (4.4, 1.2 + ROW_HEIGHT * max(tallest, 4)))
    for panel, (name, of) in zip(axes, parts, strict=True):
        rows = list(dict.fromkeys(of[row]))[::-1]
        encoders = list(dict.fromkeys(of["encoder"]))
        places = of[row].map(rows.index).to_numpy(float)
        places += (of["encoder"].map(encoders.index) / len(encoders) - 0.5).to_numpy(float) * 0.6
        colours = [inputs.colour(encoder) for encoder in of["encoder"]]
        if intervals:
            panel.hlines(places, of["low"], of["high"], colors=colours, linewidth=0.8, alpha=0.6)
        panel.scatter(of[value], places, c=colours, s=12, zorder=3)
        if line is not None:
            panel.axvline(line, color="black", linewidth=0.7, linestyle="dashed")
        panel.set_yticks(range(len(rows)), rows, fontsize=7)
        panel.set(xlabel=label, title=inputs.title(str(name)))
        panel.grid(axis="x", alpha=0.25)
    group_legend(figure, [inputs.group(name) for name in table["encoder"].unique()])


def lines(panel: Axes, inputs: Inputs, table: pd.DataFrame, x: str, y: str) -> None:
    order = [name for name in inputs.encoders if name not in inputs.floors]
    for name, rows in table.groupby("encoder", sort=False):
        panel.plot(rows[x], rows[y], linewidth=1.2, **line_style(order.index(str(name))))
    panel.grid(alpha=0.25)


def line_legend(figure: Figure, inputs: Inputs, encoders: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    order = [name for name in inputs.encoders if name not in inputs.floors]
    handles = [
        Line2D([], [], label=inputs.title(name), **line_style(order.index(name)))
        for name in order
        if name in np.asarray(encoders)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=7)
