"""Figures and tables for papers: SVG and PDF at journal widths, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from crsbench.config.overlap import summary
from crsbench.core.files import atomic_write
from crsbench.core.names import AGGREGATE
from crsbench.core.plotting import COLOURS, DASHES, GREY, house_style, short, svg_text
from crsbench.report.leaderboard import AXIS_COLUMNS, axis_cells
from crsbench.report.material import Material

ONE_COLUMN, TWO_COLUMNS = 3.46, 7.09
"""Usual widths of journal figures: 88 and 180 mm, in inches."""

HIGHLIGHTED = 6
"""The best encoders, drawn in colours; the others are grey."""

TABLE_HEAD = (
    *("CRS rank", "Encoder", "Tier", "CRS", "95 % CI", "Dominance", "Proximity", "Worst axis"),
    *(title.capitalize() for title in AXIS_COLUMNS.values()),
    *("AUROC rank", "Macro-AUROC", "Seen in pre-training"),
)


def write_paper(folder: Path | str, material: Material) -> None:
    """Write the figures as SVG and PDF and the leaderboard as Markdown and LaTeX below a folder.

    Figures use Okabe and Ito's colours, and dashes, so that they can be read without colour.
    """
    folder = Path(folder)
    for name, draw in FIGURES.items():
        with house_style():
            figure = Figure(layout="constrained")
            draw(figure, material)
            _write(folder / f"{name}.svg", svg_text(figure))
            with atomic_write(folder / f"{name}.pdf") as part:
                figure.savefig(part, format="pdf", metadata={"CreationDate": None})
    rows = leaderboard_rows(material)
    _write(folder / "leaderboard.md", markdown_table(TABLE_HEAD, rows))
    _write(folder / "leaderboard.tex", latex_table(TABLE_HEAD, rows))


def leaderboard_rows(material: Material) -> list[list[str]]:
    """The aggregate's leaderboard as text, floors last; a dash for what does not exist."""
    crs, intervals = material.tables["crs"], material.tables["bootstrap"]
    own = crs[crs["dataset"] == AGGREGATE].merge(
        intervals.loc[intervals["dataset"] == AGGREGATE, ["encoder", "crs_low", "crs_high"]],
        how="left",
    )
    own = own.sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    axes = axis_cells(material.tables["axes"], AGGREGATE)
    rows = []
    for row in own.to_dict("records"):
        of_axes = axes.get(row["encoder"], {})
        values = [of_axes[name].value if name in of_axes else None for name in AXIS_COLUMNS]
        interval = (
            "–" if pd.isna(row["crs_low"]) else f"{row['crs_low']:.3f} to {row['crs_high']:.3f}"
        )
        name = material.titles[row["encoder"]] + (" (floor)" if row["floor"] else "")
        seen = summary(material.overlaps.of(row["encoder"]).values())
        parts = [row[key] for key in ("dominance", "proximity", "worst_axis")]
        rows.append(
            [
                *(_whole(row["crs_rank"]), name, _whole(row["tier"])),
                *(_decimal(row["crs"]), interval, *map(_decimal, [*parts, *values])),
                *(_whole(row["auroc_rank"]), _decimal(row["macro_auroc"]), seen),
            ]
        )
    return rows


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the second column is text, the others are right-aligned."""
    rule = ["---" if place == 1 else "--:" for place in range(len(head))]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A `tabular` with booktabs rules, its names escaped."""
    columns = "rl" + "r" * (len(head) - 2)
    line = lambda cells: " & ".join(map(latex_text, cells)) + " \\\\\n"  # noqa: E731
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{line(head)}\\midrule\n{''.join(map(line, rows))}\\bottomrule\n\\end{{tabular}}\n"
    )


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    special = {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "–": "--", "<": r"\textless{}", ">": r"\textgreater{}",
    }  # fmt: skip
    return "".join(special.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)


def _whole(value: object) -> str:
    return "–" if pd.isna(value) else str(int(value))  # type: ignore[call-overload]


def _decimal(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:.3f}"


def _write(file: Path, text: str) -> None:
    with atomic_write(file) as part:
        part.write_text(text, encoding="utf-8")


# --- figures -------------------------------------------------------------------------------------


def profiles(figure: Figure, material: Material) -> None:
    """The four normalised axes of every encoder, one panel a data set."""
    order = _order(material)
    datasets = material.datasets
    figure.set_size_inches(TWO_COLUMNS, 3.4)
    panels = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
    means = material.seed_means
    for panel, (dataset, spec) in zip(panels, datasets.items(), strict=True):
        rows = means[means["dataset"] == dataset].set_index("encoder")
        for place, encoder in reversed(list(enumerate(order))):
            if encoder in rows.index:
                values = rows.loc[encoder, list(AXIS_COLUMNS)].to_numpy(dtype=float)
                panel.plot(range(4), values, **_style(material, place, encoder))
        titles = [title.replace(" ", "\n") for title in AXIS_COLUMNS.values()]
        panel.set_xticks(range(4), titles, fontsize=6.5, rotation=30)
        panel.set_title(short(str(spec["title"])), fontsize=9)
        panel.set_ylim(-0.03, 1.03)
        _plain(panel)
    panels[0].set_ylabel("normalised axis (1 = best)")
    handles: dict[str, object] = {}
    for panel in panels:
        handles |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    shown = [_label(material, name) for name in order[:HIGHLIGHTED]]
    named = [name for name in shown if name in handles]
    figure.legend(
        [handles[name] for name in named], named,
        loc="outside lower center", ncols=3, frameon=False, fontsize=8,
    )  # fmt: skip


def ranks(figure: Figure, material: Material) -> None:
    """From the rank by AUROC to the rank by CRS, in the aggregate."""
    crs = material.tables["crs"]
    own = crs[(crs["dataset"] == AGGREGATE) & ~crs["floor"] & crs["crs"].notna()]
    own = own.set_index("encoder")
    figure.set_size_inches(ONE_COLUMN, 1.2 + 0.21 * len(own))
    panel = figure.subplots()
    names: dict[tuple[int, int], list[str]] = {}
    for place, encoder in enumerate(name for name in _order(material) if name in own.index):
        ends = [int(own.at[encoder, key]) for key in ("auroc_rank", "crs_rank")]
        panel.plot([0, 1], ends, **_style(material, place, encoder))
        for side, rank in enumerate(ends):
            names.setdefault((side, rank), []).append(_label(material, encoder, 22))
    for (side, rank), shared in names.items():
        names = short(", ".join(shared), 30)
        text = f"{names}  {rank}" if side == 0 else f"{rank}  {names}"
        align = "right" if side == 0 else "left"
        panel.text(side - 0.05 + 0.1 * side, rank, text, ha=align, va="center", fontsize=7)
    panel.invert_yaxis()
    panel.set_xticks([0, 1], ["AUROC", "CRS"])
    panel.xaxis.tick_top()
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set_xlim(-1.3, 2.3)


def rank_probability(figure: Figure, material: Material) -> None:
    """The share of resamples in which each encoder has each rank, in the aggregate."""
    table = material.tables["bootstrap_ranks"]
    own = table[table["dataset"] == AGGREGATE]
    if own.empty:
        figure.set_size_inches(ONE_COLUMN, 1)
        figure.text(0.5, 0.5, "A single seed cannot be resampled.", ha="center", va="center")
        return
    grid = own.pivot(index="encoder", columns="rank", values="probability").fillna(0)
    grid = grid.reindex([name for name in _order(material) if name in grid.index])
    figure.set_size_inches(ONE_COLUMN + 1, 1.1 + 0.2 * len(grid))
    panel = figure.subplots()
    image = panel.imshow(grid.to_numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    panel.set_yticks(range(len(grid)), [_label(material, name) for name in grid.index], fontsize=7)
    panel.set_xticks(range(len(grid.columns)), [str(rank) for rank in grid.columns], fontsize=7)
    panel.set_xlabel("CRS rank")
    for (row, column), share in np.ndenumerate(grid.to_numpy()):
        if share >= 0.005:
            colour = "white" if share > 0.55 else "black"
            panel.text(column, row, f"{share:.2f}"[1:] if share < 1 else "1",
                       ha="center", va="center", fontsize=5.5, color=colour)  # fmt: skip
    figure.colorbar(image, ax=panel, label="share of resamples")


FIGURES: Mapping[str, Callable[[Figure, Material], None]] = {
    "profiles": profiles,
    "ranks": ranks,
    "rank_probability": rank_probability,
}


def _label(material: Material, encoder: str, letters: int = 28) -> str:
    """The encoder's name, after a † where pre-training had images of the panel."""
    seen = summary(material.overlaps.of(encoder).values()) == "yes"
    return ("† " if seen else "") + short(material.titles[encoder], letters)


def _order(material: Material) -> list[str]:
    """The encoders of the aggregate, best CRS first, floors last."""
    crs = material.tables["crs"]
    own = crs[crs["dataset"] == AGGREGATE].sort_values(
        ["floor", "crs", "encoder"], ascending=[True, False, True], na_position="last"
    )
    return own["encoder"].tolist()


def _style(material: Material, place: int, encoder: str) -> dict[str, object]:
    if encoder in material.floors or place >= HIGHLIGHTED:
        dash = "dotted" if encoder in material.floors else "solid"
        return {"color": GREY, "linewidth": 0.7, "alpha": 0.6, "linestyle": dash}
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place // 3 % len(DASHES)],
        **{"linewidth": 1.6, "marker": "o", "markersize": 3.5},
        "label": _label(material, encoder),
    }


def _plain(panel: object) -> None:
    panel.grid(axis="y", alpha=0.3)  # type: ignore[attr-defined]
    panel.spines[["top", "right"]].set_visible(False)  # type: ignore[attr-defined]
