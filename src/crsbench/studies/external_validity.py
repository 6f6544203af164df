"""Does the score, made without an external institution, predict the AUROC there?"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from crsbench.core.names import number
from crsbench.metrics.statistics import spearman_rho
from crsbench.score.crs import Panel
from crsbench.studies.base import MIN_ENCODERS
from crsbench.studies.figures import Figure, group_legend, named_points, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import CELL, Finding, Study, fields, not_run, study


@study(
    title="Does the score predict the AUROC at another hospital?",
    theme="elsewhere",
    needs=("tables",),
    columns=CELL
    | fields(str, "target")
    | fields(float, "crs_without_shift source_auroc target_auroc"),
    limit="The CRS sums up a bench. In the published study plain AUROC predicted it better.",
)
def external_validity(inputs: Inputs) -> Study:
    """Spearman's ρ of the target AUROC with the CRS without the shift and with the source AUROC.

    The CRS is that of the source data set, its drop being the mean of mean and worst drop only. The
    source AUROC is over all its classes, the target's over those that the two share.
    """
    if not inputs.shifts:
        return not_run("no data set of this run names a shift target")
    panel = without_shift(inputs.panel)
    parts = []
    for dataset, target in inputs.shifts:
        scores = panel.scored(dataset)[["encoder", "dataset", "crs", "macro_auroc"]]
        scores.columns = ["encoder", "dataset", "crs_without_shift", "source_auroc"]
        elsewhere = inputs.shift_auroc(dataset, target)[["target_auroc"]].reset_index()
        parts.append(scores.merge(elsewhere, on="encoder").assign(target=target))
    table = pd.concat(parts, ignore_index=True).dropna()
    table = table.sort_values(["dataset", "target", "encoder"], ignore_index=True)
    groups = table.groupby(["dataset", "target"], sort=True)
    large = {key: rows for key, rows in groups if len(rows) >= MIN_ENCODERS}
    if not large:
        return not_run("fewer than three ranked encoders have a score and a target AUROC")
    findings: dict[str, Finding] = {}
    sentences = []
    for (dataset, target), rows in large.items():
        by_crs = spearman_rho(rows["crs_without_shift"], rows["target_auroc"])
        by_auroc = spearman_rho(rows["source_auroc"], rows["target_auroc"])
        findings[f"{dataset}.{target}.spearman_crs_vs_target_auroc"] = by_crs
        findings[f"{dataset}.{target}.spearman_source_auroc_vs_target_auroc"] = by_auroc
        sentences.append(
            f"The macro-AUROC of {len(rows)} encoders on {inputs.title(target)} follows their CRS "
            f"without it with Spearman's ρ {number(by_crs)} and their macro-AUROC on "
            f"{inputs.title(dataset)} with {number(by_auroc)}."
        )
    return Study(table, " ".join(sentences), findings, lambda figure: _draw(figure, inputs, large))


def without_shift(panel: Panel) -> Panel:
    """The panel as if it had no shift targets; an axis made of the shift alone is then missing."""
    axes = panel.axes.copy()
    axes["drop"] = (axes["mean_drop"] + axes["worst_drop"]) / 2
    axes["shift_drop"] = float("nan")
    for name, axis in panel.scoring.axes.items():
        axes[f"axis_{name}"] = axis.normalise(axes[axis.measure])
    return replace(panel, axes=axes)


def _draw(figure: Figure, inputs: Inputs, groups: dict[tuple[str, str], pd.DataFrame]) -> None:
    row = panels(figure, 2 * len(groups), (4.6, 4.0))
    for place, ((dataset, target), rows) in enumerate(groups.items()):
        names = [inputs.label(name) for name in rows["encoder"]]
        colours = [inputs.colour(name) for name in rows["encoder"]]
        labels = {
            "crs_without_shift": f"CRS on {inputs.title(dataset)} without the shift",
            "source_auroc": f"macro-AUROC on {inputs.title(dataset)}",
        }
        for panel, (predictor, label) in zip(
            row[2 * place : 2 * place + 2], labels.items(), strict=True
        ):
            named_points(panel, rows[predictor], rows["target_auroc"], names, colours)
            panel.set(xlabel=label, ylabel=f"macro-AUROC on {inputs.title(target)}")
    group_legend(
        figure, [inputs.group(name) for rows in groups.values() for name in rows["encoder"]]
    )
