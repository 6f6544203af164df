"""How many labels an encoder needs to reach what a baseline reaches with all of them."""

from __future__ import annotations

import pandas as pd

from crsbench.core.names import CLEAN, number
from crsbench.studies.base import MEDICAL_GROUPS
from crsbench.studies.figures import Figure, line_style, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study

NEVER = "never"


@study(
    title="When fewer labels are enough",
    theme="labels",
    needs=("tables",),
    columns=fields(str, "encoder group dataset")
    | fields(int, "percent")
    | fields(float, "macro_auroc macro_auroc_sd")
    | fields(int, "n_seeds")
    | fields(str, "baseline")
    | fields(float, "baseline_auroc")
    | fields("Int64", "first_percent"),
    limit=(
        "No uncertainty enters the first fraction that reaches the baseline: near it, look at "
        "the error bars."
    ),
)
def label_efficiency(inputs: Inputs) -> Study:
    """Learning curves on the clean test set, and the first fraction that reaches the baseline.

    ``first_percent`` is the smallest label fraction at which the encoder's seed-mean macro-AUROC is
    at least the baseline encoder's at 100 %; it is missing if none is, or if the baseline is.
    """
    baseline = inputs.settings["studies"]["baseline_encoder"]
    clean = inputs.runs[inputs.runs["condition"] == CLEAN]
    full = clean[(clean["encoder"] == baseline) & (clean["percent"] == 100)]
    levels = full.groupby("dataset")["macro_auroc"].apply(lambda of: of.mean(skipna=False))
    curves = clean[~clean["encoder"].isin(inputs.floors)].sort_values("seed")
    if curves.empty:
        return not_run("there is no ranked encoder")
    by_point = curves.groupby(["encoder", "dataset", "percent"])["macro_auroc"]
    table = by_point.agg(
        macro_auroc=lambda of: of.mean(skipna=False),
        macro_auroc_sd=lambda of: of.std(ddof=1, skipna=False),
        n_seeds="size",
    ).reset_index()
    table["group"] = [inputs.group(name) for name in table["encoder"]]
    table["baseline"] = baseline
    table["baseline_auroc"] = table["dataset"].map(levels).astype("float64")
    reached = table[table["macro_auroc"] >= table["baseline_auroc"]]
    first = reached.groupby(["encoder", "dataset"])["percent"].min().rename("first_percent")
    table = table.merge(first.reset_index(), on=["encoder", "dataset"], how="left")
    table["first_percent"] = table["first_percent"].astype("Int64")
    table = table.sort_values(["dataset", "encoder", "percent"], ignore_index=True)
    return Study(
        table,
        _sentence(inputs, baseline, table),
        _findings(baseline, table),
        lambda figure: _draw(figure, inputs, table),
    )


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    """One row an encoder × data set where the baseline exists."""
    cells = table.drop_duplicates(["encoder", "dataset"])
    return cells[cells["baseline_auroc"].notna()]


def _findings(baseline: str, table: pd.DataFrame) -> dict[str, Finding]:
    findings: dict[str, Finding] = {"baseline": baseline}
    for row in table.itertuples():
        findings[f"at_{row.percent}_percent.{row.dataset}.{row.encoder}"] = row.macro_auroc
    for row in _cells(table).itertuples():
        first = NEVER if pd.isna(row.first_percent) else int(row.first_percent)
        findings[f"first_percent.{row.dataset}.{row.encoder}"] = first
    for dataset, cells in _cells(table).groupby("dataset"):
        medical = cells[cells["group"].isin(MEDICAL_GROUPS)]
        matching = int((medical["first_percent"] == 1).sum())
        findings[f"medical_encoders_reaching_baseline_at_1_percent.{dataset}"] = matching
    return findings


def _sentence(inputs: Inputs, baseline: str, table: pd.DataFrame) -> str:
    lowest = int(table["percent"].min())
    cells = _cells(table)
    if cells.empty:
        return (
            f"The baseline {inputs.title(baseline)} has no run at 100 % of the labels here, so no "
            "encoder is compared with it; the learning curves stand alone."
        )
    parts = []
    for dataset, rows in cells.groupby("dataset", sort=True):
        others = rows[rows["encoder"] != baseline]
        at_lowest = int((others["first_percent"] == lowest).sum())
        never = int(others["first_percent"].isna().sum())
        level = number(rows["baseline_auroc"].iloc[0])
        parts.append(
            f"on {inputs.title(dataset)} ({level}) {at_lowest} of {len(others)} other encoders "
            f"reach it with {lowest} % and {never} never do"
        )
    sentences = "; ".join(parts)
    return f"Against the full-label macro-AUROC of {inputs.title(baseline)}: {sentences}."


def _draw(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    datasets = list(table.groupby("dataset", sort=True))
    percents = sorted(table["percent"].unique())
    index = {name: place for place, name in enumerate(sorted(table["encoder"].unique()))}
    row = panels(figure, len(datasets), (4.2, 4.4))
    for panel, (dataset, rows) in zip(row, datasets, strict=True):
        for encoder, curve in rows.groupby("encoder", sort=True):
            panel.errorbar(
                curve["percent"],
                curve["macro_auroc"],
                curve["macro_auroc_sd"].fillna(0),
                label=inputs.label(encoder),
                marker="o",
                markersize=3,
                linewidth=1.5,
                capsize=2,
                elinewidth=0.7,
                **line_style(index[encoder]),
            )
        level = rows["baseline_auroc"].iloc[0]
        if pd.notna(level):
            panel.axhline(level, color="black", linewidth=0.9, linestyle="dashed")
        panel.set_xscale("log")
        panel.set_xticks(percents, [f"{percent} %" for percent in percents])
        panel.minorticks_off()
        panel.set(title=inputs.title(dataset), xlabel="labels")
        panel.grid(alpha=0.25)
    row[0].set_ylabel("macro-AUROC (mean ± SD over seeds)")
    lines = {}
    for panel in row:
        lines |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, frameon=False)
