"""Recalibration of a user's own model, from nothing but a table of labels and probabilities.

See docs/calibration.md for the table and for what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import brentq

from crsbench.calibration import NONE
from crsbench.calibration.calibrators import Calibrator
from crsbench.calibration.selection import brier_by_method, fit_all, least, out_of_fold
from crsbench.core.errors import UserError
from crsbench.core.files import atomic_write, write_table
from crsbench.core.names import number
from crsbench.core.plotting import COLOURS, house_style, svg_text
from crsbench.evaluation.cases import TestedCases
from crsbench.metrics.arrays import ROW_SUM_TOLERANCE, UNKNOWN, Task
from crsbench.metrics.calibration_error import equal_width_bin, top_label
from crsbench.metrics.run_metrics import RunMetrics
from crsbench.metrics.statistics import Interval, group_bootstrap

LABEL, PROBABILITY, TRUTH, GROUP, PART = "label", "p_", "y_", "group", "part"
CALIBRATION, TEST = "calibration", "test"
REPLICATES = 1000

COLUMNS = [
    "method", "recommended", "judged_on", "n_cases", "ece", "ece_low", "ece_high",
    "ece_if_calibrated", "brier", "log_loss", "macro_auroc", "auroc_change", "cv_brier",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExternalRecalibration:
    """What recalibration makes of a model's predictions.

    table: a row a method, columns ``COLUMNS``; versions: probabilities (n, K) by method, ``none``
    included; metrics: of the judged cases, by method; calibrators: by method, to keep.
    """

    table: pd.DataFrame
    versions: Mapping[str, np.ndarray]
    metrics: Mapping[str, RunMetrics]
    calibrators: Mapping[str, Calibrator]


def recalibrate_external(table_file: Path | str, folder: Path) -> None:
    """Read a table and write all that docs/calibration.md lists into a folder."""
    cases, frame = read_external_table(table_file)
    try:
        made = recalibrate(cases, (frame[PART] == TEST).to_numpy() if PART in frame else None)
    except ValueError as error:
        raise UserError(f"{table_file} can't be recalibrated from: {error}.") from error
    columns = [f"{PROBABILITY}{name}" for name in cases.classes]
    versions = []
    for method, probabilities in made.versions.items():
        version = frame.copy()
        version[columns] = probabilities
        version.insert(0, "method", method)
        versions.append(version)
    write_table(folder / "recalibrated.parquet", pd.concat(versions, ignore_index=True))
    for name, calibrator in made.calibrators.items():
        calibrator.save(folder / f"{name}.json", cases.classes)
    with house_style():
        figure = Figure(layout="constrained")
        _draw(figure, made)
        svg = svg_text(figure)
    with atomic_write(folder / "reliability.svg") as part:
        part.write_text(svg, encoding="utf-8")
    write_table(folder / "calibration.parquet", made.table)


def recalibrate(cases: TestedCases, tested: np.ndarray | None = None) -> ExternalRecalibration:
    """Fit the four calibrators and judge them on cases that they were not fitted on.

    With a mask ``tested`` (n,) they are fitted on the other cases and judged on those. Without one
    they are judged out of fold (grouped, stratified, at most five folds), and those to keep are
    then fitted on all cases. ``recommended`` is the version with the lowest Brier score
    in a cross-validation of the calibration cases; it may be ``none``.

    Raises:
        ValueError: no two classes have cases in two groups each, so that no folds can be made.
    """
    known = cases if tested is None else cases.take(~tested)
    learnt = known.task, known.given, known.truth, known.groups
    held_out = out_of_fold(*learnt)
    if all(np.array_equal(version, held_out[NONE]) for version in held_out.values()):
        raise ValueError("cross-validation needs two classes with cases in two groups each")
    cv_brier = brier_by_method(cases.task, held_out, known.truth)
    calibrators = fit_all(*learnt)
    if tested is None:
        versions, judged, word = held_out, np.ones(len(cases), dtype=bool), "out of fold"
    else:
        made = {name: of.recalibrate(cases.given) for name, of in calibrators.items()}
        versions, judged, word = {NONE: cases.given, **made}, tested, "test cases"
    metrics, rows = {}, []
    for name, version in versions.items():
        of = replace(cases, given=version).take(judged)
        metrics[name] = of.metrics()
        interval = ece_interval(of.task, of.truth, of.given, of.groups)
        rows.append(
            {"method": name, "ece_low": interval.low, "ece_high": interval.high}
            | {"recommended": name == least(cv_brier), "cv_brier": cv_brier[name]}
            | {"judged_on": word, "n_cases": len(of)}
            | {key: getattr(metrics[name], key) for key in COLUMNS if hasattr(metrics[name], key)}
        )
    table = pd.DataFrame(rows).astype({"macro_auroc": "float64"})
    table["auroc_change"] = table["macro_auroc"] - table["macro_auroc"].iloc[0]
    return ExternalRecalibration(table[COLUMNS], versions, metrics, calibrators)


def ece_interval(
    task: Task,
    truth: np.ndarray,
    probabilities: np.ndarray,
    groups: np.ndarray,
    level: float = 0.95,
) -> Interval:
    """ECE with a bootstrap interval; whole groups are drawn.

    Chance adds to every bin's gap, so an ECE lies above the truth, and a resample's above it again:
    a percentile interval would leave a calibrated model out. Here the interval holds the true ECEs
    under which the one seen would not be in either tail. The true gaps are taken in proportion to
    √(g² + s²), with g the gap seen in a bin and s its standard error; chance about them is that of
    the resamples about what was seen.

    Args:
        truth: (n, K) of 0, 1, −1. probabilities: (n, K). groups: (n,).
    """
    if task == "multiclass":
        top, right = top_label(truth, probabilities)
        confidence, correct = top[:, None], right[:, None]
    else:
        confidence, correct = probabilities, truth
    known = correct != UNKNOWN
    labels = np.flatnonzero(known.any(axis=0))
    # A bin's share of the error is |Σ w (y − p)| / Σ w, with w how often a case is drawn.
    shares = []
    for k in labels:
        bins = equal_width_bin(confidence[:, k])
        gap = np.where(known[:, k], correct[:, k] - confidence[:, k], 0.0)
        shares.append((bins[:, None] == np.unique(bins)) * gap[:, None])

    def gaps(weights: np.ndarray) -> np.ndarray:
        """(r, bins of all labels) in r resamples; NaN without known cases of a label."""
        weights = weights.astype(np.float64)
        with np.errstate(invalid="ignore"):
            by_label = [
                weights @ share / (weights @ known[:, k])[:, None]
                for k, share in zip(labels, shares, strict=True)
            ]
        return np.concatenate(by_label, axis=1)

    seen = gaps(np.ones((1, len(truth))))[0]
    drawn = group_bootstrap(groups, gaps, "ece", REPLICATES).values
    noise = drawn - seen
    pattern = np.where(seen < 0, -1.0, 1.0) * np.sqrt(seen**2 + noise.var(axis=0))
    ece, whole = (float(np.abs(values).sum() / len(labels)) for values in (seen, pattern))

    def true_ece(quantile: float) -> float:
        """The true ECE under which the one seen is this quantile; 0 if chance alone gives more."""

        def excess(factor: float) -> float:
            errors = np.abs(noise + factor * pattern).sum(axis=1) / len(labels)
            return float(np.quantile(errors, quantile)) - ece

        return 0.0 if excess(0.0) >= 0 else whole * float(brentq(excess, 0.0, 10.0))

    tail = (1 - level) / 2
    return Interval(ece, true_ece(1 - tail), min(1.0, true_ece(tail)))


def read_external_table(path: Path | str) -> tuple[TestedCases, pd.DataFrame]:
    """Read a CSV or Parquet table of labels and probabilities, and give it beside its cases.

    UserError says what is wrong with it.
    """
    try:
        csv = Path(path).suffix == ".csv"
        text = dict.fromkeys((LABEL, GROUP, PART), str)
        frame = pd.read_csv(path, dtype=text) if csv else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as a table ({error}).") from error
    if frame.empty:
        raise UserError(f"{path} has no rows.")
    names = map(str, frame)
    classes = [name.removeprefix(PROBABILITY) for name in names if name.startswith(PROBABILITY)]
    if not classes:
        raise UserError(f"{path} has no column of probabilities, `{PROBABILITY}<class>`.")
    multilabel = any(f"{TRUTH}{name}" in frame for name in classes)
    if multilabel == (LABEL in frame):
        raise UserError(
            f"{path} must have either a column `{LABEL}` (one class a case) or a column "
            f"`{TRUTH}<class>` of 0 and 1 for each class."
        )
    task: Task = "multilabel" if multilabel else "multiclass"
    probabilities = _read_probabilities(path, frame, classes, task)
    truth = (_read_labels if multilabel else _read_classes)(path, frame, classes)
    _check_part(path, frame)
    judged, ids = np.arange(len(classes)), np.arange(len(frame)).astype(str)
    labels = ids, _read_groups(frame), truth
    return TestedCases(task, tuple(classes), judged, *labels, probabilities), frame


def _read_probabilities(
    path: Path | str, frame: pd.DataFrame, classes: list[str], task: Task
) -> np.ndarray:
    for name in classes:
        column = pd.to_numeric(frame[f"{PROBABILITY}{name}"], errors="coerce")
        wrong = ~column.between(0, 1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = frame[f"{PROBABILITY}{name}"].iloc[row]
            raise UserError(
                f"{path}: row {row + 1} has {value} in `{PROBABILITY}{name}`; a probability from "
                "0 to 1 is needed."
            )
    probabilities = frame[[f"{PROBABILITY}{name}" for name in classes]].to_numpy(np.float64)
    if task == "multiclass":
        if len(classes) < 2:
            raise UserError(
                f"{path} has one column of probabilities and a `{LABEL}`; give a column for every "
                f"class, or `{TRUTH}{classes[0]}` of 0 and 1 for a binary classifier."
            )
        off = np.abs(probabilities.sum(axis=1) - 1)
        if off.max() > ROW_SUM_TOLERANCE:
            raise UserError(
                f"{path}: the probabilities of row {int(off.argmax()) + 1} add up to "
                f"{probabilities[off.argmax()].sum():g}; they must add up to 1."
            )
    return probabilities


def _read_classes(path: Path | str, frame: pd.DataFrame, classes: list[str]) -> np.ndarray:
    labels = frame[LABEL].astype(str)
    known = labels.isin(classes)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise UserError(
            f"{path}: row {row + 1} has the label '{labels.iloc[row]}'; allowed: "
            f"{', '.join(classes)}."
        )
    holds: np.ndarray = labels.to_numpy()[:, None] == np.array(classes)
    return holds.astype(np.int64)


def _read_labels(path: Path | str, frame: pd.DataFrame, classes: list[str]) -> np.ndarray:
    columns = []
    for name in classes:
        if f"{TRUTH}{name}" not in frame:
            raise UserError(f"{path} has `{PROBABILITY}{name}` and no `{TRUTH}{name}`.")
        column = frame[f"{TRUTH}{name}"]
        numbers = pd.to_numeric(column, errors="coerce").where(column.notna(), UNKNOWN)
        wrong = ~numbers.isin([0, 1, UNKNOWN])
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{path}: row {row + 1} has {column.iloc[row]} in `{TRUTH}{name}`; allowed: 0, 1, "
                "and -1 or nothing for unknown."
            )
        columns.append(numbers.to_numpy(np.int64))
    truth = np.stack(columns, axis=1)
    if (truth == UNKNOWN).all():
        raise UserError(f"{path} has no known label.")
    return truth


def _read_groups(frame: pd.DataFrame) -> np.ndarray:
    """Each case's group; a case without one is a group of its own."""
    alone = pd.Series([f"\0{row}" for row in range(len(frame))], index=frame.index)
    named = frame[GROUP].astype("string") if GROUP in frame else pd.Series(pd.NA, frame.index)
    return named.astype(object).where(named.notna(), alone).to_numpy().astype(str)


def _check_part(path: Path | str, frame: pd.DataFrame) -> None:
    found = set(frame[PART].astype(str)) if PART in frame else {CALIBRATION, TEST}
    if found != {CALIBRATION, TEST}:
        raise UserError(
            f"{path} has the parts {', '.join(sorted(found))} in `{PART}`; needed: {CALIBRATION} "
            f"and {TEST}, both."
        )


def _draw(figure: Figure, made: ExternalRecalibration) -> None:
    figure.set_size_inches(3.0 * len(made.metrics), 3.4)
    row = figure.subplots(1, len(made.metrics), sharey=True)
    for panel, of in zip(row, made.table.to_dict("records"), strict=True):
        panel.plot([0, 1], [0, 1], color="black", linewidth=0.7)
        reliability = made.metrics[of["method"]].reliability
        for place, (label, bins) in enumerate(reliability.items()):
            filled = bins.count > 0
            panel.plot(
                *(bins.mean_confidence[filled], bins.accuracy[filled], "o-"),
                markersize=3,
                linewidth=1,
                color=COLOURS[place % len(COLOURS)],
                label=label if len(reliability) > 1 else None,
            )
        star = " (recommended)" if of["recommended"] else ""
        panel.set_title(
            f"{of['method']}{star}\nECE {number(of['ece'])} ({number(of['ece_low'])} to "
            f"{number(of['ece_high'])})\n{number(of['ece_if_calibrated'])} by chance if calibrated",
            fontsize=8,
        )
        panel.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence")
    row[0].set_ylabel("observed frequency")
    if len(reliability) > 1:
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
