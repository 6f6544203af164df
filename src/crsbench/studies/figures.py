"""Forms that several studies' figures share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from crsbench.core.plotting import COLOURS, DASHES, GROUP_COLOURS


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


def line_style(index: int) -> dict[str, str]:
    """Colour and dashes that distinguish eighteen lines."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def group_legend(figure: Figure, groups: Sequence[str]) -> None:
    """A legend of the groups of encoders that occur, in their usual order."""
    shown = [group for group in GROUP_COLOURS if group in groups]
    handles = [
        Line2D([], [], marker="o", linestyle="none", color=GROUP_COLOURS[group], label=group)
        for group in shown
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
