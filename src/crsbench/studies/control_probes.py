"""Do the conclusions depend on the classifier? Rankings of encoders under other probes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pandas as pd

from crsbench.core.names import AGGREGATE, number
from crsbench.metrics.statistics import inverted_pairs, kendall_tau, spearman_rho
from crsbench.probes import LOGISTIC, NEIGHBOURS, PERCEPTRON
from crsbench.score import axes_table, crs_table
from crsbench.studies.base import MIN_ENCODERS, mean_by_encoder, too_few
from crsbench.studies.figures import Figure, group_legend, named_points, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Row, Study, fields, not_run, study

PROBE_TITLES = {
    LOGISTIC: "the logistic probe",
    NEIGHBOURS: "k nearest neighbours",
    PERCEPTRON: "the perceptron",
}
CRS = "crs"
AUROC = "macro_auroc"

Values = Mapping[tuple[str, str], pd.Series]
"""By data set (or aggregate) and measure: its value by encoder."""


@study(
    title="Other classifiers on the same features",
    theme="choices",
    needs=("tables", "control_runs"),
    columns=fields(str, "dataset measure probe_a probe_b")
    | fields(int, "n_encoders")
    | fields(float, "kendall_tau spearman_rho")
    | fields("Int64", "inverted_pairs pairs")
    | fields(str, "leader_a leader_b")
    | fields(bool, "same_leader"),
    limit="Two other simple probes. A fine-tuned network may rank otherwise.",
    wanted=lambda settings: "control_probes" in settings,
)
def control_probes(inputs: Inputs) -> Study:
    """Kendall's τ, Spearman's ρ and the leaders, by each measure, between every two probes.

    The measures of the four axes, and the CRS against the run's own panel where all four axes can
    be made, are made anew for every probe from the same label fractions: those of the control runs.
    Floors are left out. A measure that some encoder lacks is compared over the others.
    """
    control = inputs.control_runs
    percents = control["percent"].unique()
    logistic = inputs.runs[inputs.runs["percent"].isin(percents)]
    runs = {LOGISTIC: logistic} | {
        str(name): rows.drop(columns="probe") for name, rows in control.groupby("probe", sort=True)
    }
    values = {name: _values(inputs, rows) for name, rows in runs.items()}
    records = [
        _comparison(inputs, *key, a, b, values[a][key], values[b][key])
        for a, b in combinations(runs, 2)
        for key in values[LOGISTIC]
    ]
    table = control_probes.table(record for record in records if record)
    of_auroc = table[(table["measure"] == AUROC) & (table["probe_a"] == LOGISTIC)]
    whole = of_auroc[of_auroc["dataset"] == AGGREGATE]
    if whole.empty or whole["n_encoders"].min() < MIN_ENCODERS:
        count = 0 if whole.empty else whole["n_encoders"].min()
        return not_run(too_few(count))
    sentences = [_sentence(inputs, row, of_auroc) for row in whole.to_dict("records")]
    sentence = f"By macro-AUROC in the aggregate, {'; '.join(sentences)}."
    shown = {name: values[name][AGGREGATE, AUROC] for name in runs}
    return Study(table, sentence, _findings(table), lambda figure: _draw(figure, inputs, shown))


def _values(inputs: Inputs, runs: pd.DataFrame) -> Values:
    """The measures of one probe's runs, data set by data set and in the aggregate."""
    shift = {name: spec.get("shift", ()) for name, spec in inputs.datasets.items()}
    axes = axes_table(runs, inputs.scoring, shift)
    crs = crs_table(axes, inputs.scoring, None, inputs.floors)
    own = inputs.having(runs=runs, axes=axes, crs=crs, reference=None)
    means, ranked = own.seed_means, own.ranked
    values: dict[tuple[str, str], pd.Series] = {}
    for measure in (*(axis.measure for axis in inputs.scoring.axes.values()), CRS):
        rows = ranked[ranked["dataset"] != AGGREGATE] if measure == CRS else means
        for dataset in inputs.datasets:
            of_dataset = rows[rows["dataset"] == dataset].set_index("encoder")
            values[dataset, measure] = of_dataset[measure].dropna()
        whole = own.aggregate[CRS] if measure == CRS else mean_by_encoder(rows, measure)
        values[AGGREGATE, measure] = whole.dropna()
    return values


def _comparison(
    inputs: Inputs, dataset: str, measure: str, a: str, b: str, of_a: pd.Series, of_b: pd.Series
) -> Row | None:
    """One row of the table; None where neither probe has the measure of any encoder."""
    both = of_a.index.intersection(of_b.index).sort_values()
    if both.empty:
        return None
    sign = -1.0 if _less_is_better(inputs, measure) else 1.0
    first, second = sign * of_a[both], sign * of_b[both]
    leaders = [" and ".join(both[side == side.max()]) for side in (first, second)]
    record: Row = {
        "dataset": dataset,
        "measure": measure,
        "probe_a": a,
        "probe_b": b,
        "n_encoders": len(both),
        "leader_a": leaders[0],
        "leader_b": leaders[1],
        "same_leader": leaders[0] == leaders[1],
    }
    if len(both) < MIN_ENCODERS:
        return record
    pairs = inverted_pairs(first, second)
    return record | {
        "kendall_tau": kendall_tau(first, second),
        "spearman_rho": spearman_rho(first, second),
        "inverted_pairs": pairs.inverted,
        "pairs": pairs.pairs,
    }


def _less_is_better(inputs: Inputs, measure: str) -> bool:
    return any(
        axis.measure == measure and axis.one < axis.zero for axis in inputs.scoring.axes.values()
    )


def _sentence(inputs: Inputs, row: Mapping[str, object], of_auroc: pd.DataFrame) -> str:
    probe = str(row["probe_b"])
    by_dataset = of_auroc[(of_auroc["probe_b"] == probe) & (of_auroc["dataset"] != AGGREGATE)]
    leaders = [inputs.titles(str(row[side]).split(" and ")) for side in ("leader_a", "leader_b")]
    leads = (
        f"{leaders[0]} leads under both"
        if row["same_leader"]
        else f"{leaders[1]} leads and not {leaders[0]}"
    )
    return (
        f"{PROBE_TITLES[probe]} and {PROBE_TITLES[LOGISTIC]} rank {row['n_encoders']} encoders "
        f"with Kendall's τ {number(row['kendall_tau'])} and "
        f"Spearman's ρ {number(row['spearman_rho'])}, "
        f"{leads}, and the leader is the same on {by_dataset['same_leader'].sum()} of "
        f"{len(by_dataset)} data sets"
    )


def _findings(table: pd.DataFrame) -> dict[str, Finding]:
    """By control probe and measure, in the aggregate and against the logistic probe."""
    findings: dict[str, Finding] = {}
    rows = table[(table["dataset"] == AGGREGATE) & (table["probe_a"] == LOGISTIC)]
    for row in rows.itertuples():
        findings |= {
            f"{LOGISTIC}.{row.measure}.leader": row.leader_a,
            f"{row.probe_b}.{row.measure}.leader": row.leader_b,
            f"{row.probe_b}.{row.measure}.kendall_tau": row.kendall_tau,
            f"{row.probe_b}.{row.measure}.spearman_rho": row.spearman_rho,
        }
    return findings


def _draw(figure: Figure, inputs: Inputs, shown: Mapping[str, pd.Series]) -> None:
    """The aggregate macro-AUROC under each control probe against that under the logistic one."""
    others = [name for name in shown if name != LOGISTIC]
    groups: list[str] = []
    for panel, probe in zip(panels(figure, len(others), (5, 4.2)), others, strict=True):
        both = shown[LOGISTIC].index.intersection(shown[probe].index).sort_values()
        x, y = shown[LOGISTIC][both], shown[probe][both]
        names = [inputs.title(name) for name in both]
        named_points(panel, x, y, names, [inputs.colour(name) for name in both])
        low, high = min(x.min(), y.min()), max(x.max(), y.max())
        panel.plot([low, high], [low, high], color="0.7", linewidth=0.8, zorder=1)
        panel.set(
            xlabel=f"macro-AUROC, {PROBE_TITLES[LOGISTIC]}",
            ylabel=f"macro-AUROC, {PROBE_TITLES[probe]}",
        )
        groups += [inputs.group(name) for name in both]
    group_legend(figure, groups)
