"""What recalibration repairs: on clean images, under stress, elsewhere, and with how many cases."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd

from crsbench.calibration import CHOSEN, METHODS, NONE, SOURCE
from crsbench.core.names import CLEAN, number
from crsbench.core.plotting import COLOURS, GREY
from crsbench.metrics.statistics import t_interval
from crsbench.studies.figures import Axes, Figure
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

CELL = ["dataset", "encoder"]
CELL_COLUMNS = fields(str, "encoder dataset") | fields(bool, "primary")
CASES_COLUMNS = (
    CELL_COLUMNS
    | fields(str, "target method")
    | fields(int, "cases n_seeds n_test")
    | fields(float, "ece ece_sd ece_if_calibrated macro_auroc")
)
MOST_PANELS = 12
"""A figure shows the first of the primary cells; the table has them all."""


def by_method(inputs: Inputs) -> pd.DataFrame:
    """The recalibrated rows, and once more those of each seed's chosen method."""
    rows = inputs.recalibrated
    return pd.concat([rows, rows[rows["chosen"]].assign(method=CHOSEN)], ignore_index=True)


def heading(inputs: Inputs, *names: str) -> str:
    """Shown names in lines that a panel of a figure is wide enough for."""
    return textwrap.fill(", ".join(map(inputs.title, names)), 36)


# --- on the clean test set -----------------------------------------------------------------------


@study(
    title="Calibration repaired after the fact",
    theme="calibration",
    needs=("recalibrated_cells",),
    columns=CELL_COLUMNS
    | fields(str, "method")
    | fields(int, "n_seeds n_calibration n_test")
    | fields(
        float, "ece ece_sd ece_if_calibrated absolute_reduction relative_reduction auroc_change"
    )
    | fields(float, "brier log_loss")
    | fields(int, "times_chosen"),
    limit="Maps fitted on held-out images of the same source. Elsewhere they may not hold.",
    wanted=lambda settings: "recalibration" in settings,
)
def recalibration(inputs: Inputs) -> Study:
    """ECE before and after, means over seeds on the clean test set.

    The best method of a seed is the one with the lowest Brier score in a cross-validation inside
    the calibration set. Findings are over the primary cells and the chosen methods; the interval of
    the mean reduction is Student's over cells.
    """
    rows = by_method(inputs)
    rows = rows[rows["condition"] == CLEAN]
    before = rows[rows["method"] == NONE].set_index([*CELL, "seed"])
    before = before[["ece", "macro_auroc"]].add_suffix("_before")
    both = rows.join(before, on=[*CELL, "seed"])
    both["auroc_change"] = both["macro_auroc"] - both["macro_auroc_before"]
    both["times_chosen"] = both["chosen"]
    by = both.sort_values("seed").groupby([*CELL, "primary", "method"])
    table = by.agg(
        n_seeds=("seed", "size"),
        n_calibration=("n_calibration", "min"),
        n_test=("n_test", "min"),
        ece=("ece", "mean"),
        ece_sd=("ece", "std"),
        ece_before=("ece_before", "mean"),
        ece_if_calibrated=("ece_if_calibrated", "mean"),
        auroc_change=("auroc_change", "mean"),
        brier=("brier", "mean"),
        log_loss=("log_loss", "mean"),
        times_chosen=("times_chosen", "sum"),
    ).reset_index()
    table["absolute_reduction"] = table["ece_before"] - table["ece"]
    table["relative_reduction"] = table["absolute_reduction"] / table["ece_before"]
    table = _in_order(table)
    primary = table[table["primary"]]
    if primary.empty:
        return not_run("no primary cell of `recalibration` is in this run")
    return Study(
        table,
        _clean_sentence(primary),
        _clean_findings(primary),
        lambda figure: _draw_reliability(figure, inputs, table),
    )


def _clean_findings(primary: pd.DataFrame) -> dict[str, Finding]:
    chosen = primary[primary["method"] == CHOSEN]
    relative = chosen["relative_reduction"]
    found: dict[str, Finding] = {
        "primary_tests": len(chosen),
        "relative_ece_reduction.low": relative.min(),
        "relative_ece_reduction.high": relative.max(),
        "mean_auroc_change": chosen["auroc_change"].mean(),
    }
    interval = t_interval(chosen["absolute_reduction"])
    found["mean_absolute_ece_reduction.value"] = interval.estimate
    found["mean_absolute_ece_reduction.low"] = interval.low
    found["mean_absolute_ece_reduction.high"] = interval.high
    for row in chosen.itertuples():
        found[f"ece_before.{row.dataset}.{row.encoder}"] = row.ece_before
        found[f"ece_after.{row.dataset}.{row.encoder}"] = row.ece
    for method in (*METHODS, CHOSEN):
        of = primary[primary["method"] == method]
        interval = t_interval(of["absolute_reduction"])
        found[f"by_method.{method}.absolute_reduction"] = interval.estimate
        found[f"by_method.{method}.low"] = interval.low
        found[f"by_method.{method}.high"] = interval.high
        found[f"by_method.{method}.relative_reduction"] = of["relative_reduction"].mean()
        found[f"by_method.{method}.auroc_change"] = of["auroc_change"].mean()
    return found


def _clean_sentence(primary: pd.DataFrame) -> str:
    found = _clean_findings(primary)
    chosen = primary[primary["method"] == CHOSEN]
    level = f"{number(chosen['ece_before'].mean())} to {number(chosen['ece'].mean())}"
    chance = number(chosen["ece_if_calibrated"].mean())
    reduction = found["mean_absolute_ece_reduction.value"]
    interval = ""
    if len(chosen) > 1:
        low, high = (found[f"mean_absolute_ece_reduction.{end}"] for end in ("low", "high"))
        interval = f", 95 % CI {low:+.3f} to {high:+.3f}"
    changes = -100 * chosen["relative_reduction"]
    return (
        f"Recalibration by the method that cross-validation chose takes mean ECE from {level} over "
        f"{len(chosen)} primary cell{'s' * (len(chosen) > 1)} (by {changes.min():+.0f} to "
        f"{changes.max():+.0f} % by cell; mean reduction {reduction:+.3f}{interval}); perfectly "
        f"calibrated probabilities would show {chance} by chance. Macro-AUROC changes by "
        f"{found['mean_auroc_change']:+.4f}."
    )


def _draw_reliability(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    shown = list(table[table["primary"]].groupby(CELL, sort=True))[:MOST_PANELS]
    grid = _grid_of_panels(figure, len(shown))
    bins = inputs.reliability[inputs.reliability["condition"] == CLEAN]
    for panel, ((dataset, encoder), rows) in zip(grid, shown, strict=True):
        of_cell = bins[(bins["dataset"] == dataset) & (bins["encoder"] == encoder)]
        panel.plot([0, 1], [0, 1], color="black", linewidth=0.7)
        for method, colour, word in ((NONE, COLOURS[1], "before"), (CHOSEN, COLOURS[0], "after")):
            curve = pooled_curve(of_cell[of_cell["method"] == method])
            ece = rows.loc[rows["method"] == method, "ece"].iloc[0]
            panel.plot(
                *(curve["mean_confidence"], curve["accuracy"]),
                *("o-",),
                markersize=3,
                color=colour,
                label=f"{word}, ECE {number(ece)}",
            )
        panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="observed frequency")
        panel.set_title(heading(inputs, encoder, dataset), fontsize=9)
        panel.legend(fontsize=7, frameon=False)


def pooled_curve(bins: pd.DataFrame) -> pd.DataFrame:
    """`mean_confidence` and `accuracy` by bin, cases of all labels together; no empty bins."""
    filled = bins[bins["count"] > 0]
    parts = filled[["mean_confidence", "accuracy"]].mul(filled["count"], axis=0)
    sums = parts.assign(bin=filled["bin"], count=filled["count"]).groupby("bin").sum()
    return sums[["mean_confidence", "accuracy"]].div(sums["count"], axis=0)


# --- under stress and elsewhere -----------------------------------------------------------------


@study(
    title="Does the repair hold on degraded and external images?",
    theme="stress",
    needs=("recalibrated_cells",),
    columns=CELL_COLUMNS
    | fields(str, "condition kind method")
    | fields(float, "ece_before ece reduction ece_if_calibrated"),
    limit="A fall says that the repair was worth having, not that confidence can be trusted there.",
    wanted=lambda settings: "recalibration" in settings,
)
def recalibration_under_stress(inputs: Inputs) -> Study:
    """Whether calibrators fitted on clean images hold on degraded and external ones."""
    rows = by_method(inputs)
    by = rows.sort_values("seed").groupby([*CELL, "primary", "condition", "method"])
    table = by[["ece", "ece_if_calibrated"]].mean().reset_index()
    before = table[table["method"] == NONE].set_index([*CELL, "condition"])["ece"]
    table = table.join(before.rename("ece_before"), on=[*CELL, "condition"])
    table["reduction"] = table["ece_before"] - table["ece"]
    elsewhere = table["condition"].isin(list(inputs.targets))
    table["kind"] = np.where(elsewhere, "shift", "degraded")
    table.loc[table["condition"] == CLEAN, "kind"] = CLEAN
    table = _in_order(table, ["condition"])
    primary = table[table["primary"] & (table["method"] == CHOSEN)]
    if primary.empty:
        return not_run("no primary cell of `recalibration` is in this run")
    kinds = dict(list(primary.groupby("kind", sort=True)))
    found: dict[str, Finding] = {}
    for kind, rows in kinds.items():
        found[f"{kind}.pairs"] = len(rows)
        found[f"{kind}.improved"] = int((rows["reduction"] > 0).sum())
        found[f"{kind}.mean_ece_before"] = rows["ece_before"].mean()
        found[f"{kind}.mean_ece_after"] = rows["ece"].mean()
        found[f"{kind}.highest_ece_after"] = rows["ece"].max()
    return Study(
        table,
        _stress_sentence(found, kinds),
        found,
        lambda figure: _draw_stress(figure, primary),
    )


def _stress_sentence(found: Mapping[str, Finding], kinds: Mapping[str, pd.DataFrame]) -> str:
    words = {CLEAN: "on clean images", "degraded": "on degraded images", "shift": "elsewhere"}
    parts = [
        f"{words[kind]} from {number(found[f'{kind}.mean_ece_before'])} to "
        f"{number(found[f'{kind}.mean_ece_after'])} (lower in {found[f'{kind}.improved']} of "
        f"{found[f'{kind}.pairs']} cells × conditions)"
        for kind in words
        if kind in kinds
    ]
    return f"Fitted on clean images alone, recalibration takes mean ECE {'; '.join(parts)}."


def _draw_stress(figure: Figure, primary: pd.DataFrame) -> None:
    figure.set_size_inches(5, 4.6)
    panel = figure.subplots()
    highest = 1.05 * float(primary[["ece", "ece_before"]].max().max())
    panel.plot([0, highest], [0, highest], color="black", linewidth=0.7)
    for (kind, rows), colour in zip(primary.groupby("kind", sort=True), COLOURS, strict=False):
        panel.scatter(rows["ece_before"], rows["ece"], s=18, color=colour, label=kind)
    panel.set(xlabel="ECE before", ylabel="ECE after recalibration on clean images")
    panel.legend(frameon=False)
    panel.grid(alpha=0.25)


# --- how many cases ------------------------------------------------------------------------------


@study(
    title="How many labelled cases that takes",
    theme="calibration",
    needs=("recalibrated_cells",),
    columns=CASES_COLUMNS,
    limit="Each seed has one order of cases: the points of few cases are noisy.",
    wanted=lambda settings: "recalibration" in settings,
)
def recalibration_cases(inputs: Inputs) -> Study:
    """ECE on the clean test set against the number of calibration cases."""
    rows = inputs.recalibration_cases
    rows = rows[rows["target"] == rows["dataset"]]
    return _cases_study(inputs, rows, "no primary cell of `recalibration` is in this run")


@study(
    title="Repaired with cases of the target's own",
    theme="elsewhere",
    needs=("recalibrated_cells",),
    columns=CASES_COLUMNS,
    limit="Half of the target's patients give the cases; each seed has one order of them.",
    wanted=lambda settings: "recalibration" in settings,
)
def recalibration_on_target(inputs: Inputs) -> Study:
    """ECE elsewhere against the number of the target's own labelled cases.

    Tested on the groups of the target that give no cases: half of them, chosen by SHA-256.
    """
    rows = inputs.recalibration_cases
    rows = rows[rows["target"] != rows["dataset"]]
    return _cases_study(inputs, rows, "no primary cell of `recalibration` has a shift target")


def _cases_study(inputs: Inputs, rows: pd.DataFrame, reason: str) -> Study:
    by = rows.sort_values("seed").groupby([*CELL, "primary", "target", "method", "cases"])
    table = by.agg(
        n_seeds=("seed", "size"),
        n_test=("n_test", "min"),
        ece=("ece", "mean"),
        ece_sd=("ece", "std"),
        ece_if_calibrated=("ece_if_calibrated", "mean"),
        macro_auroc=("macro_auroc", lambda of: of.mean(skipna=False)),
    ).reset_index()
    table = _in_order(table, ["target", "cases"])
    primary = table[table["primary"]]
    if primary.empty:
        return not_run(reason)
    found: dict[str, Finding] = {}
    for method, of in primary[primary["method"].isin([NONE, SOURCE])].groupby("method"):
        found[f"mean_ece.{method}"] = of["ece"].mean()
    for cases, of in _common_sizes(primary).groupby("cases"):
        found[f"mean_ece.{CHOSEN}.{cases}"] = of["ece"].mean()
    return Study(
        table,
        _cases_sentence(primary, found),
        found,
        lambda figure: _draw_cases(figure, inputs, primary),
    )


def _common_sizes(primary: pd.DataFrame) -> pd.DataFrame:
    """The chosen method's rows at those numbers of cases that every cell has."""
    chosen = primary[primary["method"] == CHOSEN]
    n_cells = len(primary[[*CELL, "target"]].drop_duplicates())
    return chosen[chosen.groupby("cases")["cases"].transform("size") == n_cells]


def _cases_sentence(primary: pd.DataFrame, found: Mapping[str, Finding]) -> str:
    n_cells = len(primary[[*CELL, "target"]].drop_duplicates())
    common = sorted(_common_sizes(primary)["cases"].unique())
    sentences = [
        f"{number(found[f'mean_ece.{CHOSEN}.{cases}'])} with {cases} cases" for cases in common
    ]
    source = f"mean_ece.{SOURCE}"
    before = number(found[f"mean_ece.{NONE}"])
    start = f"Mean ECE over {n_cells} cell{'s' * (n_cells > 1)}: {before} as they are"
    if source in found:
        start += f", {number(found[source])} recalibrated at the source"
    return ", ".join([start, *sentences]) + "."


def _draw_cases(figure: Figure, inputs: Inputs, primary: pd.DataFrame) -> None:
    shown = list(primary.groupby([*CELL, "target"], sort=True))[:MOST_PANELS]
    grid = _grid_of_panels(figure, len(shown))
    for panel, ((dataset, encoder, target), rows) in zip(grid, shown, strict=True):
        for method, colour in zip((*METHODS, CHOSEN), (*COLOURS[:4], "black"), strict=True):
            of = rows[rows["method"] == method]
            width = 2.0 if method == CHOSEN else 1.0
            panel.plot(of["cases"], of["ece"], "o-", markersize=3, color=colour, label=method,
                       linewidth=width)  # fmt: skip
        for method, style in ((NONE, "dashed"), (SOURCE, "dotted")):
            for ece in rows.loc[rows["method"] == method, "ece"]:
                panel.axhline(ece, color="black", linestyle=style, linewidth=1, label=method)
        chosen = rows[rows["method"] == CHOSEN]
        panel.plot(chosen["cases"], chosen["ece_if_calibrated"], color=GREY, label="by chance")
        if len(chosen):
            panel.set_xscale("log")
            ticks = sorted(chosen["cases"].unique())
            panel.set_xticks(ticks, [f"{cases:g}" for cases in ticks])
            panel.minorticks_off()
        panel.set(xlabel="labelled cases", ylabel="ECE", ylim=(0, None))
        names = dict.fromkeys((encoder, dataset, target))
        panel.set_title(heading(inputs, *names), fontsize=9)
        panel.grid(alpha=0.25)
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)


# --- helpers -------------------------------------------------------------------------------------


def _in_order(table: pd.DataFrame, between: list[str] | None = None) -> pd.DataFrame:
    """Rows by cell, then the columns `between`, then methods in their usual order."""
    order = {name: place for place, name in enumerate((NONE, SOURCE, *METHODS, CHOSEN))}
    place = table["method"].map(order)
    keys = [*CELL, *(between or []), "_place"]
    return table.assign(_place=place).sort_values(keys, ignore_index=True).drop(columns="_place")


def _grid_of_panels(figure: Figure, count: int) -> list[Axes]:
    columns = min(3, count)
    rows = -(-count // columns)
    figure.set_size_inches(3.4 * columns, 3.2 * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in grid[count:]:
        panel.set_axis_off()
    for panel in grid[:count]:
        panel.spines[["top", "right"]].set_visible(False)
    return list(grid[:count])
