"""What degraded and external images do to confidence, beside what they do to ranking."""

from __future__ import annotations

import numpy as np
import pandas as pd

from crsbench.core.names import CLEAN, number
from crsbench.metrics.statistics import Correlation, pearson
from crsbench.score.axes import BOTH_SIDES
from crsbench.studies.base import MIN_ENCODERS
from crsbench.studies.figures import Figure, group_legend, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

DEGRADED, SHIFT = "degraded", "shift"
KEYS = ["encoder", "dataset", "seed"]


@study(
    title="Confident and wrong: calibration under stress",
    theme="stress",
    needs=("tables",),
    columns=fields(str, "encoder group dataset condition kind")
    | fields(float, "auroc_clean auroc auroc_loss ece_clean ece ece_rise ece_if_calibrated")
    | fields(bool, "silent"),
    limit="Synthetic stress models acquisition, not population or pathology.",
    wanted=lambda settings: "stress_calibration" in settings["studies"],
)
def stress_calibration(inputs: Inputs) -> Study:
    """Loss of AUROC and rise of ECE from clean to every other condition, 100 % of the labels.

    Means over seeds; a shift target's loss is over the classes that both sides have and define. A
    condition is a *silent failure* if the loss of AUROC is below one threshold while the rise of
    ECE is above another (``studies.stress_calibration``).
    """
    limits = inputs.settings["studies"]["stress_calibration"]
    table = _table(inputs)
    if table.empty:
        return not_run("no ranked encoder has runs on degraded or external images")
    quiet = table["auroc_loss"] < limits["auroc_loss"]
    table["silent"] = quiet & (table["ece_rise"] > limits["ece_rise"])
    cells = _cells(table)
    link = _link(cells)
    return Study(
        table,
        _sentence(inputs, table, cells, link),
        _findings(table, cells, link),
        lambda figure: _draw(figure, inputs, table, cells, link),
    )


def _table(inputs: Inputs) -> pd.DataFrame:
    runs = inputs.runs[(inputs.runs["percent"] == 100)]
    runs = runs[~runs["encoder"].isin(inputs.floors)]
    clean = runs[runs["condition"] == CLEAN].set_index(KEYS)[["macro_auroc", "ece"]]
    stressed = runs[runs["condition"] != CLEAN].join(
        clean.rename(columns={"macro_auroc": "auroc_clean", "ece": "ece_clean"}), on=KEYS
    )
    elsewhere = stressed["condition"].isin(list(inputs.targets))
    stressed["kind"] = np.where(elsewhere, SHIFT, DEGRADED)
    stressed["auroc"] = stressed["macro_auroc"]
    if set(BOTH_SIDES) <= set(stressed.columns):
        home, away = (stressed[name].where(elsewhere) for name in BOTH_SIDES)
        stressed["auroc_clean"] = home.fillna(stressed["auroc_clean"])
        stressed["auroc"] = away.fillna(stressed["auroc"])
    stressed["auroc_loss"] = stressed["auroc_clean"] - stressed["auroc"]
    stressed["ece_rise"] = stressed["ece"] - stressed["ece_clean"]
    measures = ["auroc_clean", "auroc", "auroc_loss", "ece_clean", "ece", "ece_rise"]
    measures.append("ece_if_calibrated")
    by = stressed.sort_values("seed").groupby(["dataset", "encoder", "condition", "kind"])
    table = by[measures].agg(lambda of: of.mean(skipna=False)).reset_index()
    table["group"] = [inputs.group(name) for name in table["encoder"]]
    return table


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    """Means over the degraded conditions by cell, and the highest ECE and rise among them."""
    degraded = table[table["kind"] == DEGRADED]
    by = degraded.groupby(["dataset", "encoder", "group"])
    cells = by[["auroc_loss", "ece_rise"]].agg(lambda of: of.mean(skipna=False))
    cells["peak"], cells["peak_increase"] = by["ece"].max(), by["ece_rise"].max()
    return cells.reset_index()


def _link(cells: pd.DataFrame) -> Correlation:
    """Of the two means over cells; undefined for too few cells to say anything."""
    both = cells[["auroc_loss", "ece_rise"]].dropna()
    if len(both) < MIN_ENCODERS:
        return Correlation(*[float("nan")] * 4, len(both))
    return pearson(*both.to_numpy().T)


def _findings(table: pd.DataFrame, cells: pd.DataFrame, link: Correlation) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for row in cells.itertuples():
        cell = f"{row.dataset}.{row.encoder}"
        found[f"mean_ece_increase.{cell}"] = row.ece_rise
        found[f"peak.{cell}"] = row.peak
        found[f"peak_increase.{cell}"] = row.peak_increase
    prefix = "correlation_auroc_loss_ece_loss"
    found |= {f"{prefix}.{name}": getattr(link, name) for name in ("r", "low", "high", "p")}
    found[f"{prefix}.cells"] = link.n
    silent = table[table["silent"]]
    found["conditions"] = len(table)
    found["silent_failures"] = len(silent)
    found["silent_cells"] = len(silent[["encoder", "dataset"]].drop_duplicates())
    return found


def _sentence(inputs: Inputs, table: pd.DataFrame, cells: pd.DataFrame, link: Correlation) -> str:
    limits = inputs.settings["studies"]["stress_calibration"]
    parts = []
    if len(cells):
        worst = cells.loc[cells["ece_rise"].fillna(-np.inf).idxmax()]
        parts.append(
            f"Degraded images raise ECE by {number(cells['ece_rise'].mean())} on average over "
            f"{len(cells)} cells, most for {inputs.title(worst['encoder'])} on "
            f"{inputs.title(worst['dataset'])} (mean {number(worst['ece_rise'])}, highest ECE "
            f"{number(worst['peak'])})"
        )
    if link.n >= MIN_ENCODERS:
        parts.append(
            f"loss of AUROC and rise of ECE correlate with r = {number(link.r)} (95 % CI "
            f"{number(link.low)} to {number(link.high)})"
        )
    silent = table[table["silent"]]
    parts.append(
        f"{len(silent)} of {len(table)} conditions are silent failures (AUROC falls by less than "
        f"{limits['auroc_loss']:g}, ECE rises by more than {limits['ece_rise']:g})"
    )
    return "; ".join(parts) + "."


def _draw(
    figure: Figure, inputs: Inputs, table: pd.DataFrame, cells: pd.DataFrame, link: Correlation
) -> None:
    limits = inputs.settings["studies"]["stress_calibration"]
    by_cell, by_condition = panels(figure, 2, (4.6, 4.2))
    for panel, rows, title in (
        (by_cell, cells, f"Mean over degraded conditions, {link.n} cells (r = {number(link.r)})"),
        (by_condition, table, "Every condition; silent failures ringed"),
    ):
        colours = [inputs.colour(name) for name in rows["encoder"]]
        panel.scatter(rows["auroc_loss"], rows["ece_rise"], c=colours, s=18)
        panel.axhline(0, color="black", linewidth=0.7)
        panel.axvline(0, color="black", linewidth=0.7)
        panel.set(xlabel="loss of macro-AUROC", ylabel="rise of ECE")
        panel.set_title(title, fontsize=9)
        panel.grid(alpha=0.25)
    silent = table[table["silent"]]
    by_condition.scatter(
        silent["auroc_loss"], silent["ece_rise"], s=60, facecolors="none", edgecolors="black"
    )
    by_condition.axvline(limits["auroc_loss"], color="black", linestyle="dotted", linewidth=0.9)
    by_condition.axhline(limits["ece_rise"], color="black", linestyle="dotted", linewidth=0.9)
    group_legend(figure, table["group"].unique())
