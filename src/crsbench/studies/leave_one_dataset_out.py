"""Does the CRS from the other data sets predict the CRS on a new one?"""

from __future__ import annotations

import pandas as pd

from crsbench.core.names import AGGREGATE, number
from crsbench.metrics.statistics import kendall_tau, spearman_rho
from crsbench.studies.base import MIN_ENCODERS, mean_by_encoder
from crsbench.studies.figures import Figure, encoder_points, group_legend, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study


@study(
    title="Does the score carry over to another data set?",
    theme="elsewhere",
    needs=("tables",),
    columns=fields(str, "held_out")
    | fields(int, "n_encoders")
    | fields(float, "spearman_rho kendall_tau")
    | fields(str, "winner_of_others winner_held_out")
    | fields(bool, "recovered"),
    limit="A correlation over a few encoders; with three of them it is hardly more than a coin.",
)
def leave_one_dataset_out(inputs: Inputs) -> Study:
    """Agreement of the CRS on each data set with the mean CRS over the others.

    The mean is over those of the others that the encoder has. A winner is recovered if an encoder
    is first in both.
    """
    scores = inputs.ranked
    scores = scores[scores["dataset"] != AGGREGATE]
    datasets = sorted(scores["dataset"].unique())
    if len(datasets) < 2:
        return not_run(f"{len(datasets)} data set leaves none to predict it from")
    folds: dict[str, pd.DataFrame] = {}
    for dataset in datasets:
        held_out = scores[scores["dataset"] == dataset].set_index("encoder")["crs"]
        others = mean_by_encoder(scores[scores["dataset"] != dataset], "crs")
        both = pd.DataFrame({"others": others, "held_out": held_out}).dropna().sort_index()
        if len(both) >= MIN_ENCODERS:
            folds[dataset] = both
    if not folds:
        return not_run("no data set shares three ranked encoders with the others")
    table = pd.DataFrame([_fold(*fold) for fold in folds.items()])
    findings: dict[str, Finding] = {
        f"spearman.{row.held_out}": row.spearman_rho for row in table.itertuples()
    }
    findings["winners_recovered"] = int(table["recovered"].sum())
    sentences = ", ".join(
        f"{number(row.spearman_rho)} for {inputs.title(row.held_out)}" for row in table.itertuples()
    )
    sentence = (
        f"The CRS from the other data sets follows that on the one left out with Spearman's ρ "
        f"{sentences}; its winner is recovered in {findings['winners_recovered']} of "
        f"{len(table)} folds."
    )
    return Study(table, sentence, findings, lambda figure: _draw(figure, inputs, folds))


def _fold(dataset: str, both: pd.DataFrame) -> dict[str, object]:
    first = {name: both.index[both[name] == both[name].max()] for name in both.columns}
    return {
        "held_out": dataset,
        "n_encoders": len(both),
        "spearman_rho": spearman_rho(both["others"], both["held_out"]),
        "kendall_tau": kendall_tau(both["others"], both["held_out"]),
        "winner_of_others": ", ".join(first["others"]),
        "winner_held_out": ", ".join(first["held_out"]),
        "recovered": bool(set(first["others"]) & set(first["held_out"])),
    }


def _draw(figure: Figure, inputs: Inputs, folds: dict[str, pd.DataFrame]) -> None:
    for panel, (dataset, both) in zip(
        panels(figure, len(folds), (4.2, 4.0)), folds.items(), strict=True
    ):
        encoder_points(panel, inputs, both["others"], both["held_out"])
        panel.set(
            xlabel="mean CRS on the other data sets", ylabel=f"CRS on {inputs.title(dataset)}"
        )
    group_legend(figure, [inputs.group(name) for both in folds.values() for name in both.index])
