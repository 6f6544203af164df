"""How much the ranking by CRS depends on its weights and anchors, which are design choices."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.plotting import COLOURS
from crsbench.metrics.statistics import competition_rank, kendall_tau
from crsbench.score import AXES, Axis, crs_components
from crsbench.studies.base import MIN_ENCODERS, too_few
from crsbench.studies.figures import Figure, line_style, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

FloatArray = npt.NDArray[np.float64]

GRID = 20
"""Steps of the grid over the simplex of weights: 231 points in steps of 0.05."""

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""How far an anchor `zero` is moved: its distance from the anchor `one` times the factor."""

COMPONENTS = ("dominance", "proximity", "worst_axis")
FACTOR_COLUMNS = [f"factor_{name}" for name in AXES]


@study(
    title="Every choice of weights",
    theme="choices",
    needs=("tables",),
    columns=fields(float, " ".join(COMPONENTS))
    | fields(str, "leader")
    | fields(float, "kendall_tau"),
    limit=(
        "The weights are design choices, not clinical utilities; a share of the triangle is no "
        "probability."
    ),
)
def weight_sensitivity(inputs: Inputs) -> Study:
    """Leader and ranking of the aggregate CRS at each point of the whole simplex of weights.

    ``kendall_tau`` compares with the ranking at the weights in use. Shares are of grid points;
    encoders that are first together count each.
    """
    of_run = inputs.aggregate
    if len(of_run) < MIN_ENCODERS:
        return not_run(too_few(len(of_run)))
    parts = of_run[list(COMPONENTS)].to_numpy(np.float64)
    weights = simplex(GRID)
    # One component at a time, so that a tie of the components is a tie of the sums.
    scores = sum(weights[:, k, None] * parts[:, k] for k in range(3))
    ranking = _compared(scores, of_run)
    table = pd.concat([pd.DataFrame(weights, columns=list(COMPONENTS)), ranking], axis=1)
    findings = _findings(scores, of_run)
    used = asdict(inputs.scoring.weights)
    sentence = (
        f"Over {len(weights)} points of the whole simplex of weights {_leaders(inputs, findings)}; "
        f"Kendall's τ with the ranking at {' / '.join(f'{used[name]:.2f}' for name in COMPONENTS)} "
        f"(dominance / proximity / worst axis) is {table['kendall_tau'].median():.3f} at the "
        f"median and {table['kendall_tau'].min():.3f} at the least."
    )

    def draw(figure: Figure) -> None:
        (panel,) = panels(figure, 1, (6.4, 5.4))
        x, y = weights[:, 1] + weights[:, 2] / 2, weights[:, 2] * np.sqrt(3) / 2
        leaders = sorted(table["leader"].unique())
        for place, leader in enumerate(leaders):
            own = (table["leader"] == leader).to_numpy()
            shown = " and ".join(map(inputs.label, leader.split(", ")))
            colour = COLOURS[place % len(COLOURS)]
            panel.scatter(x[own], y[own], s=60, marker="h", color=colour, label=shown)
        now = [used[name] for name in COMPONENTS]
        panel.plot(now[1] + now[2] / 2, now[2] * np.sqrt(3) / 2, "x", color="black", label="in use")
        ends = {"dominance": (0, -0.07), "proximity": (1, -0.07), "worst axis": (0.5, 0.92)}
        for name, (at_x, at_y) in ends.items():
            panel.text(at_x, at_y, f"{name} alone", ha="center")
        panel.set_aspect("equal")
        panel.axis("off")
        figure.legend(loc="outside lower center", ncols=4, frameon=False, title="first by CRS")

    return Study(table, sentence, findings, draw)


@study(
    title="Other anchors",
    theme="choices",
    needs=("tables",),
    columns=fields(float, " ".join(FACTOR_COLUMNS))
    | fields(str, "leader")
    | fields(float, "kendall_tau"),
    limit="It says how much depends on the anchors, not which are right.",
)
def anchor_sensitivity(inputs: Inputs) -> Study:
    """Leader and ranking of the aggregate CRS with the anchors ``zero`` moved, all combinations.

    ``kendall_tau`` compares with the ranking at the anchors in use.
    """
    of_run = inputs.aggregate
    if len(of_run) < MIN_ENCODERS:
        return not_run(too_few(len(of_run)))
    factors = np.array(list(product(FACTORS, repeat=len(AXES))))
    scores = _scores_with_moved_anchors(inputs, factors, of_run.index)
    ranking = _compared(scores, of_run)
    table = pd.concat([pd.DataFrame(factors, columns=FACTOR_COLUMNS), ranking], axis=1)
    findings = _findings(scores, of_run)
    sentence = (
        f"With the anchors moved to 0.5 to 1.5 times their distance, in all {len(factors)} "
        f"combinations, {_leaders(inputs, findings)}; Kendall's τ with the ranking in use is "
        f"{table['kendall_tau'].median():.3f} at the median and {table['kendall_tau'].min():.3f} "
        "at the least."
    )
    return Study(table, sentence, findings, lambda figure: _draw_anchors(figure, table))


def simplex(steps: int) -> FloatArray:
    """(n, 3) all triples of multiples of 1 / steps that are at least 0 and sum to one."""
    triples = [(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]
    return np.array(triples, dtype=np.float64) / steps


def _scores_with_moved_anchors(
    inputs: Inputs, factors: FloatArray, encoders: pd.Index
) -> FloatArray:
    """(n, E) aggregate CRS of the encoders for each row of (n, 4) factors."""
    panel = inputs.panel
    total = np.zeros((len(factors), len(encoders)))
    count = np.zeros(len(encoders))
    for dataset in panel.datasets:
        rows, _, is_peer, is_self = panel.values(dataset)
        axes = np.empty((len(factors), len(rows), len(AXES)))
        for k, axis in enumerate(panel.scoring.axes.values()):
            for factor in FACTORS:
                moved = Axis(axis.measure, axis.one + factor * (axis.zero - axis.one), axis.one)
                axes[factors[:, k] == factor, :, k] = moved.normalise(rows[axis.measure])
        crs = crs_components(axes, axes[:, is_peer], is_self, panel.scoring.weights).crs
        at = encoders.get_indexer(rows["encoder"])
        total[:, at[at >= 0]] += crs[:, at >= 0]
        count[at[at >= 0]] += 1
    return total / count


def _compared(scores: FloatArray, of_run: pd.DataFrame) -> pd.DataFrame:
    """Leader and τ with the ranking of the run, for each row of (n, E) scores."""
    first = competition_rank(scores) == 1
    return pd.DataFrame(
        {
            "leader": [", ".join(of_run.index[row]) for row in first],
            "kendall_tau": [kendall_tau(row, of_run["crs"]) for row in scores],
        }
    )


def _findings(scores: FloatArray, of_run: pd.DataFrame) -> dict[str, Finding]:
    ranks = competition_rank(scores)
    findings: dict[str, Finding] = {}
    for encoder, own in zip(of_run.index, ranks.T, strict=True):
        findings[f"share_first.{encoder}"] = float((own == 1).mean())
        findings[f"best_rank.{encoder}"] = int(own.min())
        findings[f"worst_rank.{encoder}"] = int(own.max())
    return findings


def _leaders(inputs: Inputs, findings: dict[str, Finding]) -> str:
    shares = {
        name.removeprefix("share_first."): share
        for name, share in findings.items()
        if name.startswith("share_first.") and share
    }
    ordered = sorted(shares.items(), key=lambda item: (-float(item[1]), item[0]))
    sentences = [f"{inputs.title(name)} is first in {100 * share:.1f} %" for name, share in ordered]
    return ", ".join(sentences)


def _draw_anchors(figure: Figure, table: pd.DataFrame) -> None:
    """τ along each axis's factor with the other anchors in use; a ring where the leader changes."""
    from matplotlib.lines import Line2D

    (panel,) = panels(figure, 1, (6, 3.8))
    in_use = table[(table[FACTOR_COLUMNS] == 1).all(axis=1)].iloc[0]
    for place, name in enumerate(AXES):
        others = [column for column in FACTOR_COLUMNS if column != f"factor_{name}"]
        rows = table[(table[others] == 1).all(axis=1)].sort_values(f"factor_{name}")
        style = line_style(place)
        x, y = rows[f"factor_{name}"], rows["kendall_tau"]
        panel.plot(x, y, marker="o", markersize=4, label=name, **style)
        other = rows["leader"] != in_use["leader"]
        panel.plot(x[other], y[other], "o", markersize=10, fillstyle="none", color=style["color"])
    ring = Line2D([], [], marker="o", markersize=10, fillstyle="none", linestyle="none", color="k")
    handles, labels = panel.get_legend_handles_labels()
    panel.set_xlabel("distance between the two anchors of one axis, times that in use")
    panel.set_ylabel("Kendall's τ with the ranking in use")
    panel.grid(alpha=0.25)
    figure.legend(
        [*handles, ring],
        [*labels, "another leader"],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
