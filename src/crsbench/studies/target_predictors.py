"""What measured at home predicts the AUROC elsewhere? Every summary, on the same footing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.names import SEED_MEAN, number
from crsbench.core.plotting import short
from crsbench.metrics.statistics import spearman_rho
from crsbench.score import AXES
from crsbench.studies.base import MIN_ENCODERS
from crsbench.studies.external_validity import without_shift
from crsbench.studies.figures import Figure, panels
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import Finding, Study, fields, not_run, study
from crsbench.studies.shift_detection import shift_detection

FEW_ENCODERS = 20
"""Below it the sentence warns: the interval of a ρ of 0.5 over 20 encoders is about ±0.4."""

FloatArray = npt.NDArray[np.float64]


@study(
    title="What predicts the AUROC at another hospital?",
    theme="elsewhere",
    needs=("tables", "features"),
    columns=fields(str, "dataset target predictor")
    | fields(int, "n_encoders")
    | fields(float, "spearman_rho low high loo_rho_min loo_rho_max loo_error loo_error_of_mean"),
    limit="Many predictors, few encoders: the best of them is partly best by chance.",
    wanted=lambda settings: bool(settings["studies"].get("target_predictors")),
)
def target_predictors(inputs: Inputs) -> Study:
    """Spearman's ρ and leave-one-encoder-out error of every source-side summary, for each target.

    Summaries: macro-AUROC, the four axes and the CRS (robustness and CRS as if there were no shift
    target), the AUROC under the worst degraded condition, and where the config has shift detection
    the shift of the features. The error is the mean |observed − predicted| target AUROC of each
    encoder by the straight line through the others; `loo_error_of_mean` predicts their mean.
    """
    if not inputs.shifts:
        return not_run("no data set of this run names a shift target")
    detected = None
    if inputs.settings["studies"].get("shift_detection"):
        detected = shift_detection(inputs).table
    records, sentences = [], []
    findings: dict[str, Finding] = {}
    for dataset, target in inputs.shifts:
        frame = _summaries(inputs, dataset, target, detected)
        if len(frame) < MIN_ENCODERS:
            continue
        elsewhere = frame.pop("target_auroc").to_numpy()
        rows = [
            {"dataset": dataset, "target": target, "predictor": name}
            | predicted_ranking(values.to_numpy(), elsewhere)
            for name, values in frame.items()
        ]
        records += rows
        findings |= {
            f"{dataset}.{target}.{row['predictor']}.{key}": row[key]
            for row in rows
            for key in ("spearman_rho", "loo_error")
        }
        sentences.append(_sentence(inputs, dataset, target, rows))
    if not records:
        return not_run("fewer than three ranked encoders have a score and a target AUROC")
    table = pd.DataFrame(records)
    return Study(table, " ".join(sentences), findings, lambda figure: _draw(figure, inputs, table))


def _summaries(
    inputs: Inputs, dataset: str, target: str, detected: pd.DataFrame | None
) -> pd.DataFrame:
    """A row an encoder with all summaries and its `target_auroc`; incomplete ones are left out."""
    panel = without_shift(inputs.panel)
    frame = panel.scored(dataset).set_index("encoder")[["macro_auroc", "crs"]]
    frame.columns = ["auroc", "crs_without_shift"]
    axes = panel.axes[(panel.axes["dataset"] == dataset) & (panel.axes["seed"] == SEED_MEAN)]
    axes = axes.set_index("encoder")
    for name in AXES:
        frame[f"axis_{name}"] = axes[f"axis_{name}"]
    frame["worst_condition_auroc"] = axes["macro_auroc"] - axes["worst_drop"]
    if detected is not None:
        own = detected[(detected["dataset"] == dataset) & (detected["condition"] == target)]
        for score, rows in own.groupby("score"):
            rows = rows.set_index("encoder")
            frame[f"feature_shift_{score}"] = rows["distance_ratio"]
            frame[f"foreign_auroc_{score}"] = rows["auroc"]
    frame["target_auroc"] = inputs.shift_auroc(dataset, target)["target_auroc"]
    return frame.dropna().sort_index()


def predicted_ranking(values: FloatArray, elsewhere: FloatArray) -> dict[str, Any]:
    """How a summary (n,) predicts the target AUROC (n,), n ≥ 3 encoders.

    `low, high`: 95 % interval of ρ by Fisher's z with the standard error
    √((1 + ρ²/2) / (n − 3)) of Bonett and Wright (Psychometrika 65:23, 2000); missing for n = 3.
    `loo_rho_min, loo_rho_max`: the least and largest ρ with one encoder left out.
    """
    n = len(values)
    rho = spearman_rho(values, elsewhere)
    low = high = float("nan")
    if n > 3 and abs(rho) < 1:
        half = 1.959963984540054 * math.sqrt((1 + rho**2 / 2) / (n - 3))
        low, high = (math.tanh(math.atanh(rho) + sign * half) for sign in (-1, 1))
    others = [np.delete(np.arange(n), i) for i in range(n)]
    without = [spearman_rho(values[of], elsewhere[of]) for of in others]
    lines = [_line(values[of], elsewhere[of], values[i]) for i, of in enumerate(others)]
    means = [float(elsewhere[of].mean()) for of in others]
    undefined = any(map(math.isnan, without))
    return {
        "n_encoders": n,
        "spearman_rho": rho,
        "low": low,
        "high": high,
        "loo_rho_min": float("nan") if undefined else min(without),
        "loo_rho_max": float("nan") if undefined else max(without),
        "loo_error": float(np.abs(elsewhere - lines).mean()),
        "loo_error_of_mean": float(np.abs(elsewhere - means).mean()),
    }


def _line(x: FloatArray, y: FloatArray, at: float) -> float:
    """The least-squares line through (x, y) at a point; the mean of y where x is constant."""
    spread = x - x.mean()
    if not spread.any():
        return float(y.mean())
    slope = (spread * (y - y.mean())).sum() / np.square(spread).sum()
    return float(y.mean() + slope * (at - x.mean()))


def _sentence(inputs: Inputs, dataset: str, target: str, rows: Sequence[Mapping[str, Any]]) -> str:
    defined = [row for row in rows if not math.isnan(row["spearman_rho"])]
    by_name = {row["predictor"]: row for row in rows}
    n, mean = rows[0]["n_encoders"], rows[0]["loo_error_of_mean"]
    sentences = f"On {inputs.title(target)}, over {n} encoders: "
    if not defined:
        return sentences + "no summary varies."
    best = min(defined, key=lambda row: row["loo_error"])
    sentences += (
        f"macro-AUROC at home predicts with ρ {number(by_name['auroc']['spearman_rho'])} and the "
        f"CRS without the shift with ρ {number(by_name['crs_without_shift']['spearman_rho'])}; the "
        f"least leave-one-out error is that of {best['predictor']}, {number(best['loo_error'])} "
        f"(the mean of the others: {number(mean)})."
    )
    if n < FEW_ENCODERS:
        sentences += (
            f" The best of {len(rows)} summaries over so few encoders is picked with hindsight and "
            "may owe it to chance."
        )
    return sentences


def _draw(figure: Figure, inputs: Inputs, table: pd.DataFrame) -> None:
    pairs = list(table.groupby(["dataset", "target"], sort=False))
    for panel, ((_, target), rows) in zip(
        panels(figure, len(pairs), (5.2, 3.4)), pairs, strict=True
    ):
        rows = rows.iloc[::-1]
        places = np.arange(len(rows))
        panel.hlines(places, rows["low"], rows["high"], color="#888888", linewidth=1)
        panel.plot(rows["spearman_rho"], places, "o", markersize=4)
        panel.axvline(0, color="black", linewidth=0.6)
        panel.set_yticks(places, rows["predictor"])
        panel.set(
            xlim=(-1.05, 1.05),
            xlabel=f"Spearman's ρ with macro-AUROC\non {short(inputs.title(target), 40)}",
        )
