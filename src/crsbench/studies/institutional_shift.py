"""What is left of an encoder's macro-AUROC at another institution, medical against general."""

from __future__ import annotations

import numpy as np
import pandas as pd

from crsbench.core.names import number
from crsbench.metrics.statistics import welch_test
from crsbench.studies.base import MEDICAL_GROUPS
from crsbench.studies.figures import Figure, group_legend, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study


@study(
    title="From home to another hospital",
    theme="elsewhere",
    needs=("tables",),
    columns=fields(str, "encoder group dataset target")
    | fields(float, "source_auroc target_auroc drop"),
    limit=(
        "The sample of Welch's test are encoders that share data and designs; its p-value is "
        "descriptive. Few real shifts were tried, in the published panel one."
    ),
)
def institutional_shift(inputs: Inputs) -> Study:
    """Probes applied to a shift target without retraining; means over seeds, 100 % of the labels.

    Both AUROCs are over the classes that the two data sets share.

    Welch's test compares the mean target AUROC of medical encoders (broad medical and specialist)
    with that of general ones. Its sample are the encoders of the panel, not patients.
    """
    if not inputs.shifts:
        return not_run("no data set of this run names a shift target")
    parts = []
    for dataset, target in inputs.shifts:
        rows = inputs.shift_auroc(dataset, target).reset_index()
        rows["group"] = [inputs.group(name) for name in rows["encoder"]]
        rows["drop"] = rows["source_auroc"] - rows["target_auroc"]
        parts.append(rows.assign(dataset=dataset, target=target))
    table = pd.concat(parts, ignore_index=True)
    if table.empty:
        return not_run("no ranked encoder has runs on a shift target")
    findings: dict[str, Finding] = {}
    sentences = []
    for (dataset, target), rows in table.groupby(["dataset", "target"], sort=True):
        sentence, numbers = _comparison(inputs, dataset, target, rows)
        sentences.append(sentence)
        findings |= {f"{dataset}.{target}.{name}": value for name, value in numbers.items()}
    return Study(table, " ".join(sentences), findings, lambda figure: _draw(figure, inputs, table))


def _comparison(
    inputs: Inputs, dataset: str, target: str, rows: pd.DataFrame
) -> tuple[str, dict[str, Finding]]:
    medical = rows.loc[rows["group"].isin(MEDICAL_GROUPS), "target_auroc"].to_numpy()
    general = rows.loc[rows["group"] == "general", "target_auroc"].to_numpy()
    numbers: dict[str, Finding] = {
        f"target_auroc.{row.encoder}": row.target_auroc for row in rows.itertuples()
    }
    where = f"From {inputs.title(dataset)} to {inputs.title(target)}"
    if len(medical) < 2 or len(general) < 2 or np.ptp(medical) + np.ptp(general) == 0:
        return (
            f"{where} the {len(rows)} encoders keep a mean macro-AUROC of "
            f"{number(rows['target_auroc'].mean())} of {number(rows['source_auroc'].mean())}; "
            f"{len(medical)} medical and {len(general)} general encoders are too few to compare.",
            numbers,
        )
    test = welch_test(medical, general)
    numbers |= {
        "medical_macro_auroc": test.mean_a,
        "general_macro_auroc": test.mean_b,
        "difference": test.difference,
        "difference_low": test.low,
        "difference_high": test.high,
        "welch_p": test.p,
    }
    return (
        f"{where} the {len(medical)} medical encoders keep a macro-AUROC of {test.mean_a:.3f} and "
        f"the {len(general)} general ones {test.mean_b:.3f} (difference {test.difference:.3f}, "
        f"95 % CI [{test.low:.3f}, {test.high:.3f}], Welch's p = {test.p:.2g}).",
        numbers,
    )


def _draw(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    shifts = list(table.groupby(["dataset", "target"], sort=True))
    height = 1.6 + 0.28 * table["encoder"].nunique()
    for panel, ((dataset, target), rows) in zip(
        panels(figure, len(shifts), (5.5, height)), shifts, strict=True
    ):
        rows = rows.sort_values("target_auroc", ignore_index=True)
        for place, row in rows.iterrows():
            colour = inputs.colour(row["encoder"])
            ends = [row["target_auroc"], row["source_auroc"]]
            panel.plot(ends, [place, place], color=colour, linewidth=1.5)
            panel.plot(ends[0], place, "o", color=colour)
            panel.plot(ends[1], place, "o", color=colour, markerfacecolor="white")
        panel.axvline(0.5, color="black", linewidth=0.8, linestyle="dotted")
        panel.set_yticks(rows.index, [inputs.label(name) for name in rows["encoder"]])
        names = inputs.title(target), inputs.title(dataset)
        panel.set_xlabel("macro-AUROC\nfilled: {}\nopen: {}".format(*names))
        panel.grid(axis="x", alpha=0.25)
    group_legend(figure, table["group"].unique())
