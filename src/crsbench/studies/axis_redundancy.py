"""Does the axis of label efficiency say more than macro-AUROC does?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.names import AGGREGATE, CLEAN, number
from crsbench.core.plotting import COLOURS
from crsbench.metrics.statistics import spearman_rho
from crsbench.studies.base import MIN_ENCODERS, mean_by_encoder
from crsbench.studies.figures import Figure, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import CELL, Study, fields, not_run, study

MARKERS = "osD^vP"


@study(
    title="Is the label axis a copy of AUROC?",
    theme="labels",
    needs=("tables",),
    columns=CELL | fields(float, "macro_auroc aulc retention"),
    limit="Retention is what is kept, not how good it is. It rewards having little to lose.",
)
def axis_redundancy(inputs: Inputs) -> Study:
    """Spearman's ρ of full-label AUROC with AULC and with retention, over cells and encoders.

    AULC, the area under the learning curve, is taken over the logarithm of the label fraction and
    divided by its length, so it is a mean AUROC. Cells are encoder × data set; an encoder is the
    mean of its cells.
    """
    clean = inputs.runs[
        (inputs.runs["condition"] == CLEAN) & ~inputs.runs["encoder"].isin(inputs.floors)
    ]
    percents = sorted(int(percent) for percent in clean["percent"].unique())
    if len(percents) < 2:
        return not_run("a learning curve needs two label fractions")
    curves = clean.pivot_table(
        index=["encoder", "dataset", "seed"], columns="percent", values="macro_auroc", dropna=False
    )[percents]
    aulc = pd.Series(area_under_learning_curve(percents, curves.to_numpy()), index=curves.index)
    by_cell = aulc.groupby(["encoder", "dataset"]).apply(lambda of: of.mean(skipna=False))
    cells = inputs.seed_means[["encoder", "dataset", "macro_auroc", "retention"]]
    cells = cells.merge(by_cell.rename("aulc").reset_index(), on=["encoder", "dataset"])
    encoders = pd.DataFrame(
        {name: mean_by_encoder(cells, name) for name in ("macro_auroc", "aulc", "retention")}
    )
    encoders = encoders.rename_axis("encoder").reset_index().assign(dataset=AGGREGATE)
    table = pd.concat([cells, encoders], ignore_index=True).dropna(ignore_index=True)
    is_encoder = table["dataset"] == AGGREGATE
    if is_encoder.sum() < MIN_ENCODERS:
        reason = f"{is_encoder.sum()} encoders have all values, and a correlation needs 3"
        return not_run(reason)
    findings = {
        f"{measure}_vs_full_auroc.{over}": spearman_rho(rows[measure], rows["macro_auroc"])
        for measure in ("aulc", "retention")
        for over, rows in (("encoders", table[is_encoder]), ("cells", table[~is_encoder]))
    }
    sentence = (
        f"Over {is_encoder.sum()} encoders the area under the learning curve follows full-label "
        f"macro-AUROC with Spearman's ρ {number(findings['aulc_vs_full_auroc.encoders'])}, "
        f"retention with {number(findings['retention_vs_full_auroc.encoders'])}; over "
        f"{(~is_encoder).sum()} cells with {number(findings['aulc_vs_full_auroc.cells'])} and "
        f"{number(findings['retention_vs_full_auroc.cells'])}."
    )
    return Study(table, sentence, findings, lambda figure: _draw(figure, inputs, table))


def area_under_learning_curve(
    percents: npt.ArrayLike, auroc: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Trapezoidal area over log(percent), divided by the length of that axis.

    Args:
        percents: (f,) ascending label fractions, at least two.
        auroc: (…, f) AUROC at each; a NaN makes the area NaN.
    """
    x = np.log(np.asarray(percents, dtype=np.float64))
    return np.trapezoid(np.asarray(auroc, dtype=np.float64), x, axis=-1) / (x[-1] - x[0])


def _draw(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    datasets = sorted(set(table["dataset"]) - {AGGREGATE})
    row = panels(figure, 2, (4.6, 4.2))
    labels = {"aulc": "area under the learning curve", "retention": "retention"}
    for panel, (measure, label) in zip(row, labels.items(), strict=True):
        for place, dataset in enumerate([*datasets, AGGREGATE]):
            rows = table[table["dataset"] == dataset]
            style = {
                "color": COLOURS[place % len(COLOURS)],
                "marker": MARKERS[place % len(MARKERS)],
            }
            if dataset == AGGREGATE:
                style = {"color": "black", "marker": "x"}
            shown = "encoders (mean)" if dataset == AGGREGATE else inputs.title(dataset)
            panel.scatter(rows["macro_auroc"], rows[measure], s=24, label=shown, **style)
        panel.set(xlabel="macro-AUROC at 100 % of the labels", ylabel=label)
        panel.grid(alpha=0.25)
    handles = row[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
