"""What the tables of test cases say: a sentence, findings and a figure for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crsbench.core.names import CLEAN
from crsbench.studies.base import Finding, Inputs, Study, not_run, number
from crsbench.studies.figures import group_legend, line_style, panels

ROW_HEIGHT = 0.22
"""Inches that a row of a dot plot takes."""


def subgroups(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    clean = shown[(shown["condition"] == CLEAN) & (shown["metric"] == "auroc")]
    clean = clean[clean["value"].notna()]
    small = table[table["metric"].isna() & (table["condition"] == CLEAN) & (table["group"] != "")]
    left_out = small[["dataset", "column", "group"]].drop_duplicates()
    n = clean[["dataset", "column", "group"]].drop_duplicates()
    if clean.empty:
        sentence = "No subgroup is large enough for an AUROC of its own."
    else:
        width = (clean["high"] - clean["low"]).median()
        worst = clean.loc[clean["value"].idxmin()]
        sentence = (
            f"{len(n)} subgroups have an AUROC of their own on a clean test set; the median width "
            f"of its 95 % interval is {number(width)}. The lowest is {number(worst['value'])}, of "
            f"{inputs.title(worst['encoder'])} for {worst['column']} {worst['group']} on "
            f"{inputs.title(worst['dataset'])}."
        )
    sentence += f" {len(left_out)} smaller groups are named and left out."
    findings: dict[str, Finding] = {"n_subgroups": len(n), "n_left_out": len(left_out)}

    def draw(figure: Figure) -> None:
        of = clean.assign(row=clean["column"].str.cat(clean["group"], sep=" "))
        _dots(figure, inputs, of, "row", "value", "macro-AUROC", intervals=True)

    return Study(table, sentence, findings, None if clean.empty else draw)


def subgroup_gaps(inputs: Inputs, table: pd.DataFrame) -> Study:
    tested = _ranked(inputs, table)
    tested = tested[tested["p"].notna()]
    if tested.empty:
        return Study(table, "Not run: no column has two groups with cases enough.")
    found = tested[tested["found"].astype(bool)]
    findings: dict[str, Finding] = {"tested": len(tested), "found": len(found)}
    for dataset, rows in tested.groupby("dataset"):
        findings[f"{dataset}.tested"] = len(rows)
        findings[f"{dataset}.found"] = int(rows["found"].sum())
    sentence = (
        f"Of {len(tested)} gaps between subgroups, {len(found)} are larger than chance makes "
        "them (Holm's correction over the columns and metrics of an encoder on a test set, 5 %; "
        "encoders are not corrected for their number)."
    )
    if len(found):
        most = found.loc[found["gap"].idxmax()]
        sentence += (
            f" The largest is {number(most['gap'])} in {most['metric']}, {most['column']} "
            f"{most['worst_group']} below {most['best_group']}, of {inputs.title(most['encoder'])} "
            f"on {inputs.title(most['dataset'])} ({most['condition']})."
        )
    of_auroc = tested.loc[tested["metric"] == "auroc", "gap_by_chance"]
    if len(of_auroc):
        sentence += (
            f" Groups of these sizes differ by up to {number(of_auroc.median())} in AUROC by "
            "chance (median): smaller gaps go unseen."
        )
    return Study(table, sentence, findings)


def equity(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    shown = shown[shown["equity"].notna()]
    if shown.empty:
        return Study(table, "Not run: no column has two groups with cases enough.")
    worst = shown.loc[shown["equity"].idxmin()]
    sentence = (
        "Worst-group retention is the AUROC of an encoder's worst subgroup over its AUROC on all "
        f"cases; it stands beside the four axes and never enters the CRS. The least is "
        f"{number(worst['equity'])}, of {inputs.title(worst['encoder'])} on "
        f"{inputs.title(worst['dataset'])} ({worst['column']} {worst['group']}), where groups that "
        f"are alike would have {number(worst['equity_by_chance'])} by chance."
    )
    findings = {
        f"{row.dataset}.{row.encoder}": float(row.equity) for row in shown.itertuples(index=False)
    }

    def draw(figure: Figure) -> None:
        of = shown.assign(row=[inputs.title(name) for name in shown["encoder"]])
        _dots(figure, inputs, of, "row", "equity", "worst-group retention", intervals=True)

    return Study(table, sentence, findings, draw)


def operating_points(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    shown = shown[shown["shortfall"].notna()]
    if shown.empty:
        return Study(table, "Not run: no target has calibration and test cases.")
    aim, promised = shown["aim"].iloc[0], shown["promised"].iloc[0]
    shown = shown.assign(achieved=shown["promised"] - shown["shortfall"])
    sentence, findings = _kept_promise(inputs, shown, "achieved", f"a {aim} of {promised:g}")
    few = shown.loc[shown["condition"] == CLEAN, "n_calibration"].median()
    case = "positive" if aim == "sensitivity" else "negative"
    sentence += f" The median threshold rests on {few:g} {case} calibration cases."

    def draw(figure: Figure) -> None:
        of = _mean_by_condition(shown, "achieved")
        _dots(figure, inputs, of, "condition", "achieved", f"achieved {aim}", line=promised)

    return Study(table, sentence, findings, draw)


def net_benefit(inputs: Inputs, table: pd.DataFrame) -> Study:
    clean = _ranked(inputs, table)
    clean = clean[(clean["condition"] == CLEAN) & clean["net_benefit"].notna()]
    if clean.empty:
        return not_run(list(table), "no target has test cases of known truth")
    default = clean["treat_all"].clip(lower=0)
    better = float((clean["net_benefit"] > default).mean())
    surely = float((clean["low"] > default).mean())
    sentence = (
        "On clean test sets the displayed probabilities are worth more than treating all or "
        f"nobody at {better:.0%} of the encoders, targets and thresholds, surely so (95 % "
        f"interval) at {surely:.0%}."
    )
    findings: dict[str, Finding] = {"better": better, "surely_better": surely}

    def draw(figure: Figure) -> None:
        datasets = list(clean["dataset"].unique())
        for panel, name in zip(panels(figure, len(datasets), (4.4, 3.4)), datasets, strict=True):
            of = clean[clean["dataset"] == name]
            target = of["target"].iloc[0]
            of = of[of["target"] == target]
            _lines(panel, inputs, of, "threshold", "net_benefit")
            one = of[of["encoder"] == of["encoder"].iloc[0]]
            panel.plot(
                one["threshold"], one["treat_all"], color="black", linewidth=0.8, label="all"
            )
            panel.axhline(0, color="black", linewidth=0.5)
            panel.set(xlabel="threshold probability", ylabel="net benefit")
            panel.set_ylim(bottom=-0.05)
            panel.set_title(f"{inputs.title(name)}: {target}")
        _line_legend(figure, inputs, clean["encoder"].unique())

    return Study(table, sentence, findings, draw)


def selective_prediction(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    shown = shown[shown["aurc"].notna()]
    if shown.empty:
        return not_run(list(table), "no test case of known truth")
    sentences, findings = [], {}
    for dataset, rows in shown.groupby("dataset", sort=False):
        clean = rows[rows["condition"] == CLEAN]
        means = rows.groupby("condition")[["error", "aurc"]].mean()
        worst = means["aurc"].idxmax()
        findings[f"{dataset}.{CLEAN}.aurc"] = float(means.loc[CLEAN, "aurc"])
        findings[f"{dataset}.worst.aurc"] = float(means.loc[worst, "aurc"])
        sentences.append(
            f"On {inputs.title(dataset)} the mean risk over all coverages is "
            f"{number(clean['aurc'].mean())} against an error of {number(clean['error'].mean())} "
            f"without selection (at best {number(clean['aurc_oracle'].mean())}); under {worst} "
            f"it is {number(means.loc[worst, 'aurc'])} against {number(means.loc[worst, 'error'])}."
        )
    return Study(table, " ".join(sentences), findings)


def risk_coverage(inputs: Inputs, table: pd.DataFrame) -> Study:
    clean = _ranked(inputs, table)
    clean = clean[clean["condition"] == CLEAN]
    if clean.empty:
        return not_run(list(table), "no test case of known truth")
    least, most = clean["coverage"].min(), clean["coverage"].max()
    sentences = []
    for dataset, rows in clean.groupby("dataset", sort=False):
        risk = rows.groupby("coverage")["risk"].mean()
        sentences.append(
            f"On {inputs.title(dataset)} the risk falls from {number(risk[most])} at a coverage of "
            f"{most:.0%} to {number(risk[least])} at {least:.0%} (means over encoders)."
        )

    def draw(figure: Figure) -> None:
        datasets = list(clean["dataset"].unique())
        for panel, name in zip(panels(figure, len(datasets), (4.4, 3.4)), datasets, strict=True):
            _lines(panel, inputs, clean[clean["dataset"] == name], "coverage", "risk")
            panel.set(xlabel="coverage", ylabel="risk (error among the accepted)")
            panel.set_ylim(bottom=0)
            panel.set_title(inputs.title(name))
        _line_legend(figure, inputs, clean["encoder"].unique())

    return Study(table, " ".join(sentences), {}, draw)


def conformal_sets(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    shown = shown[shown["coverage"].notna()]
    if shown.empty:
        return not_run(list(table), "no calibration or test case of known truth")
    promised = shown["promised"].iloc[0]
    sentence, findings = _kept_promise(inputs, shown, "coverage", f"a coverage of {promised:g}")

    def draw(figure: Figure) -> None:
        of = _mean_by_condition(shown, "coverage")
        _dots(figure, inputs, of, "condition", "coverage", "achieved coverage", line=promised)

    return Study(table, sentence, findings, draw)


def shift_detection(inputs: Inputs, table: pd.DataFrame) -> Study:
    shown = _ranked(inputs, table)
    if shown.empty:
        return not_run(list(table), "there is no degraded or external condition")
    sentences = []
    findings: dict[str, Finding] = {}
    for score, rows in shown.groupby("score", sort=False):
        means = rows.groupby("condition")["auroc"].mean()
        findings |= {f"{score}.{condition}.auroc": float(v) for condition, v in means.items()}
        unseen = means[means < 0.6]
        sentences.append(
            f"{_SCORE_TITLES[score]} finds {means.idxmax()} best (AUROC {number(means.max())}) and "
            f"{means.idxmin()} least ({number(means.min())}); {len(unseen)} of {len(means)} "
            "conditions stay below 0.6."
        )
    alarms = shown["flagged_clean"].mean()
    sentences.append(f"On clean test images the alarms go off for {alarms:.1%}.")

    def draw(figure: Figure) -> None:
        best = shown[shown["score"] == "mahalanobis"]
        _dots(figure, inputs, best, "condition", "auroc", "AUROC of detection", line=0.5)

    return Study(table, " ".join(sentences), findings, draw)


_SCORE_TITLES = {
    "mahalanobis": "Mahalanobis's distance",
    "knn": "The distance to the nearest neighbours",
}

STUDIES: Mapping[str, Callable[[Inputs, pd.DataFrame], Study]] = {
    "subgroups": subgroups,
    "subgroup_gaps": subgroup_gaps,
    "equity": equity,
    "operating_points": operating_points,
    "net_benefit": net_benefit,
    "selective_prediction": selective_prediction,
    "risk_coverage": risk_coverage,
    "conformal_sets": conformal_sets,
    "shift_detection": shift_detection,
}


# --- what they share ------------------------------------------------------------------------------


def _ranked(inputs: Inputs, table: pd.DataFrame) -> pd.DataFrame:
    """Without the floors, which stay in the tables."""
    return table[~table["encoder"].isin(inputs.floors)]


def _kept_promise(
    inputs: Inputs, shown: pd.DataFrame, column: str, promise: str
) -> tuple[str, dict[str, Finding]]:
    """What is left of a promise on clean, degraded and external images, means over encoders."""
    sentences = []
    findings: dict[str, Finding] = {}
    for dataset, rows in shown.groupby("dataset", sort=False):
        means = rows.groupby("condition")[column].mean()
        findings |= {f"{dataset}.{condition}": float(value) for condition, value in means.items()}
        external = [name for name in means.index if name in inputs.targets]
        degraded = means.drop([name for name in (CLEAN, *external) if name in means.index])
        sentence = f"On {inputs.title(dataset)} {promise} comes to {number(means.get(CLEAN))} clean"
        if len(degraded):
            sentence += f", {number(degraded.min())} under {degraded.idxmin()}"
        for name in external:
            sentence += f", {number(means[name])} on {inputs.title(name)}"
        sentences.append(sentence + ".")
    return " ".join(sentences), findings


def _mean_by_condition(shown: pd.DataFrame, column: str) -> pd.DataFrame:
    """Means over targets or labels, in the order of the conditions."""
    keys = ["dataset", "encoder", "condition"]
    return shown.groupby(keys, sort=False)[column].mean().reset_index()


def _dots(
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


def _lines(panel: Axes, inputs: Inputs, table: pd.DataFrame, x: str, y: str) -> None:
    order = [name for name in inputs.encoders if name not in inputs.floors]
    for name, rows in table.groupby("encoder", sort=False):
        panel.plot(rows[x], rows[y], linewidth=1.2, **line_style(order.index(str(name))))
    panel.grid(alpha=0.25)


def _line_legend(figure: Figure, inputs: Inputs, encoders: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    order = [name for name in inputs.encoders if name not in inputs.floors]
    handles = [
        Line2D([], [], label=inputs.title(name), **line_style(order.index(name)))
        for name in order
        if name in np.asarray(encoders)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=7)
