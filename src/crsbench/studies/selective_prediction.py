"""Selective prediction: what an encoder's confidence is good for when doubtful cases are passed on.

Risk-coverage curves (Geifman and El-Yaniv, NeurIPS 2017) and split conformal prediction (Vovk et
al. 2005; the score of Sadinle et al., JASA 2019: one less the probability of the true class).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from crsbench.core.names import CLEAN, number
from crsbench.evaluation.cases import CellCases, TestedCases
from crsbench.metrics.arrays import UNKNOWN
from crsbench.metrics.calibration_error import top_label
from crsbench.metrics.statistics import with_intervals
from crsbench.studies.figures import Figure, dataset_panels, dots, line_legend, lines
from crsbench.studies.inputs import Inputs
from crsbench.studies.operating_points import kept_promise, mean_by_condition
from crsbench.studies.registry import TESTED, Row, Study, fields, not_run, study

FloatArray = npt.NDArray[np.float64]

AT_ONCE = 2**20
"""Cases of all resamples together whose curves are made at once: what the memory bears."""


# --- risk and coverage ----------------------------------------------------------------------------


class RiskCoverage:
    """The risk-coverage curve of (n,) cases in resamples of them.

    The most confident cases are accepted first. Equally confident cases have no order among them:
    within them, errors rise evenly, which is the expectation over all orders.

    confidence: (n,); wrong: (n,) 0 or 1; weights: (r, n) whole numbers.
    """

    def __init__(self, confidence: np.ndarray, wrong: np.ndarray, weights: FloatArray) -> None:
        order = np.argsort(-confidence, kind="stable")
        ordered = confidence[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        drawn = weights[:, order]
        self.cases = np.add.reduceat(drawn, starts, axis=1)
        self.errors = np.add.reduceat(drawn * wrong[order], starts, axis=1)
        self.cases_up_to = np.cumsum(self.cases, axis=1)
        self.errors_up_to = np.cumsum(self.errors, axis=1)

    def error(self) -> FloatArray:
        """(r,) risk at full coverage."""
        return self.errors_up_to[:, -1] / self.cases_up_to[:, -1]

    def area(self) -> FloatArray:
        """(r,) AURC: mean over k = 1 … n of the risk of the k most confident cases.

        In a block of m equally confident cases with e errors after N cases with E errors, the risk
        of its first j is (E + j·e/m) / (N + j); summed over j that is
        e + (E − N·e/m) · (H(N + m) − H(N)), H being the harmonic numbers.
        """
        before = self.cases_up_to - self.cases
        with np.errstate(invalid="ignore"):
            rate = np.where(self.cases > 0, self.errors / self.cases, 0.0)
        harmonic = harmonic_numbers(int(self.cases_up_to[:, -1].max()))
        span = harmonic[self.cases_up_to.astype(np.int64)] - harmonic[before.astype(np.int64)]
        sums = self.errors + (self.errors_up_to - self.errors - before * rate) * span
        return sums.sum(axis=1) / self.cases_up_to[:, -1]

    def oracle_area(self) -> float:
        """The least AURC at the error of the whole test set: every error is put last."""
        n, wrong = int(self.cases_up_to[0, -1]), int(self.errors_up_to[0, -1])
        harmonic = harmonic_numbers(n)
        return float((wrong - (n - wrong) * (harmonic[n] - harmonic[n - wrong])) / n)

    def risk(self, coverages: Sequence[float]) -> FloatArray:
        """(coverages,) risk of the whole test set (the first row of the weights)."""
        n = self.cases_up_to[0, -1]
        accepted = np.asarray(coverages) * n
        cases = np.concatenate(([0.0], self.cases_up_to[0]))
        errors = np.concatenate(([0.0], self.errors_up_to[0]))
        return np.interp(accepted, cases, errors) / accepted


def harmonic_numbers(n: int) -> FloatArray:
    """(n + 1,) H(0) = 0, H(k) = 1 + 1/2 + … + 1/k."""
    return np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, n + 1))))


def judgements(test: TestedCases) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What is accepted or passed on: confidence, wrong and rows, for each seed and problem.

    Multi-class: the top label. Multi-label: each label is a problem of its own, decided at 0.5,
    over its known cases; the confidence is that of the decision.
    """
    found = []
    everyone = np.arange(len(test.groups))
    for of_seed in test.confidences():
        if test.task == "multiclass":
            confidence, correct = top_label(test.truth, of_seed)
            found.append((confidence, 1 - correct, everyone))
            continue
        for k in range(len(test.classes)):
            rows = np.flatnonzero(test.known[:, k])
            if len(rows):
                p, truth = of_seed[rows, k], test.truth[rows, k]
                found.append((np.maximum(p, 1 - p), (p >= 0.5) != truth, rows))
    return found


def selective_prediction_of(
    cell: CellCases, coverages: Sequence[float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the tables `selective_prediction` and `risk_coverage` for a cell.

    Means over seeds, and for a multi-label task over labels.
    """
    areas, risks = [], []
    for condition, test in cell.tests.items():
        row = {"encoder": cell.encoder, "dataset": cell.dataset, "condition": condition}
        problems = judgements(test)
        if not problems:
            areas.append(row | {"missing": "no test case of known truth"})
            continue
        r = len(test.weights)
        totals = {name: np.zeros(r) for name in ("error", "aurc")}
        oracle = 0.0
        risk = np.zeros(len(coverages))
        for confidence, wrong, rows in problems:
            step = max(1, AT_ONCE // len(rows))
            for start in range(0, r, step):
                part = slice(start, start + step)
                with np.errstate(invalid="ignore"):  # no case of a label in a resample: NaN
                    curve = RiskCoverage(confidence, wrong, test.weights[part][:, rows])
                    totals["error"][part] += curve.error()
                    totals["aurc"][part] += curve.area()
                if start == 0:
                    oracle += curve.oracle_area()
                    risk += curve.risk(coverages)
        means = {name: total / len(problems) for name, total in totals.items()}
        whole = {"aurc_oracle": oracle / len(problems), "n_cases": len(test.groups)}
        areas.append(row | with_intervals(means) | whole)
        risks += [
            row | {"coverage": float(coverage), "risk": float(value)}
            for coverage, value in zip(coverages, risk / len(problems), strict=True)
        ]
    return areas, risks


# --- conformal prediction -------------------------------------------------------------------------


def conformal_limit(true_probabilities: np.ndarray, error_rate: float) -> float:
    """The probability that a class needs to be in the prediction set.

    With n calibration cases the ⌈(n + 1)(1 − α)⌉-th smallest score 1 − p(true class) is the limit
    of the score; where that is more than n, every class is in every set.

    true_probabilities: (n,) what each calibration case's true class was given.
    """
    n = len(true_probabilities)
    rank = int(np.ceil((n + 1) * (1 - error_rate) - 1e-9))
    if rank > n:
        return -np.inf
    return float(np.sort(true_probabilities)[n - rank])


def conformal_sets_of(cell: CellCases, error_rate: float) -> list[dict[str, Any]]:
    """The rows of the table `conformal_sets` for a cell: promised and achieved coverage.

    Multi-class: sets of classes, `label` is missing. Multi-label: for each label a set of "present"
    and "absent". Both from the calibration set of each seed; means over seeds. `lost` is the
    coverage of the clean test set less that under the condition.
    """
    records: list[dict[str, Any]] = []
    clean: dict[str, FloatArray] = {}

    def add(row: dict[str, Any], found: dict[str, Any], covered: FloatArray) -> None:
        label = row.get("label", "")
        if row["condition"] == CLEAN:
            clean[label] = covered
        else:
            found |= with_intervals({"lost": clean[label] - covered})
        records.append(row | found)

    for condition, test in cell.tests.items():
        row = {
            "encoder": cell.encoder,
            "dataset": cell.dataset,
            "condition": condition,
            "promised": 1 - error_rate,
        }
        if cell.task == "multiclass":
            pairs = [(one.truth, one.probabilities) for one in cell.calibration]
            data = test.truth, test.probabilities, test.weights, test.classes
            add(row, *_sets(pairs, *data, error_rate))
            continue
        for k, name in enumerate(test.classes):
            own = cell.classes.index(name)
            pairs = []
            for one in cell.calibration:
                known = one.truth[:, own] != UNKNOWN
                pairs.append(_binary(one.truth[known, own], one.probabilities[known, own]))
            rows = np.flatnonzero(test.known[:, k])
            truth, _ = _binary(test.truth[rows, k], test.probabilities[0][rows, k])
            both = np.stack(
                [_binary(test.truth[rows, k], p[rows, k])[1] for p in test.probabilities]
            )
            data = truth, both, test.weights[:, rows], ("absent", "present")
            add(row | {"label": name}, *_sets(pairs, *data, error_rate))
    return records


def _binary(truth: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A label as two classes, absent and present."""
    return np.stack([1 - truth, truth], axis=1), np.stack([1 - probability, probability], axis=1)


def _sets(
    calibration: Sequence[tuple[np.ndarray, np.ndarray]],
    truth: np.ndarray,
    probabilities: np.ndarray,
    weights: FloatArray,
    classes: Sequence[str],
    error_rate: float,
) -> tuple[dict[str, Any], FloatArray]:
    """What to write of a problem, and its (1 + R,) coverage.

    truth: (n, S); probabilities: (seeds, n, S).
    """
    counts = [len(t) for t, _ in calibration]
    row: dict[str, Any] = {"n_calibration": float(np.mean(counts)), "n_cases": len(truth)}
    if not len(truth) or not all(counts):
        nothing = np.full(len(weights), np.nan)
        return row | {"missing": "no calibration or test case of known truth"}, nothing
    limits = [conformal_limit(p[t == 1], error_rate) for t, p in calibration]
    member = probabilities >= np.array(limits)[:, None, None]
    covered = (member & (truth == 1)).any(axis=2).mean(axis=0)
    size = member.sum(axis=2)
    with np.errstate(invalid="ignore"):  # a resample without a known case has no value
        coverage = weights @ covered / weights.sum(axis=1)
    by_class = [
        covered[truth[:, k] == 1].mean() if truth[:, k].any() else 2.0 for k in range(len(classes))
    ]
    worst = int(np.argmin(by_class))
    row |= {
        "set_size": float(size.mean()),
        "empty": float((size == 0).mean()),
        "certain": float((size == 1).mean()),
        "worst_class": classes[worst],
        "worst_class_coverage": float(by_class[worst]),
    }
    return row | with_intervals({"coverage": coverage}), coverage


# --- the studies ----------------------------------------------------------------------------------


def _rows(inputs: Inputs, cell: CellCases) -> dict[str, list[Row]]:
    settings = inputs.settings["studies"]["selective_prediction"]
    areas, risks = selective_prediction_of(cell, settings["coverages"])
    sets = conformal_sets_of(cell, settings["error_rate"])
    return {"selective_prediction": areas, "risk_coverage": risks, "conformal_sets": sets}


@study(
    title="When the model may abstain",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("Int64", "n_cases")
    | fields(float, "error error_low error_high aurc aurc_low aurc_high aurc_oracle")
    | fields("string", "missing"),
    limit="What happens to the cases that are handed back is not part of the figure.",
    wanted=lambda settings: bool(settings["studies"].get("selective_prediction")),
)
def selective_prediction(inputs: Inputs) -> Study:
    """The area under the risk-coverage curve beside the error without selection."""
    table = selective_prediction.table(
        inputs.of_all(_rows, inputs.predicted_cells())["selective_prediction"]
    )
    shown = inputs.without_floors(table)
    shown = shown[shown["aurc"].notna()]
    if shown.empty:
        return not_run("no test case of known truth")
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


@study(
    title="Risk by share of the cases that are answered",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED | fields(float, "coverage risk"),
    limit="What happens to the cases that are handed back is not part of the figure.",
    wanted=lambda settings: bool(settings["studies"].get("selective_prediction")),
)
def risk_coverage(inputs: Inputs) -> Study:
    """The error among the cases that are accepted, by their share."""
    table = risk_coverage.table(inputs.of_all(_rows, inputs.predicted_cells())["risk_coverage"])
    clean = inputs.without_floors(table)
    clean = clean[clean["condition"] == CLEAN]
    if clean.empty:
        return not_run("no test case of known truth")
    least, most = clean["coverage"].min(), clean["coverage"].max()
    sentences = []
    for dataset, rows in clean.groupby("dataset", sort=False):
        risk = rows.groupby("coverage")["risk"].mean()
        sentences.append(
            f"On {inputs.title(dataset)} the risk falls from {number(risk[most])} at a coverage of "
            f"{most:.0%} to {number(risk[least])} at {least:.0%} (means over encoders)."
        )

    def draw(figure: Figure) -> None:
        for panel, rows in dataset_panels(figure, inputs, clean, (4.4, 3.4)):
            lines(panel, inputs, rows, "coverage", "risk")
            panel.set(xlabel="coverage", ylabel="risk (error among the accepted)")
            panel.set_ylim(bottom=0)
        line_legend(figure, inputs, clean["encoder"].unique())

    return Study(table, " ".join(sentences), {}, draw)


@study(
    title="Sets of answers with a promised coverage",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("string", "label")
    | fields(float, "promised n_calibration")
    | fields("Int64", "n_cases")
    | fields(float, "coverage coverage_low coverage_high lost lost_low lost_high")
    | fields(float, "set_size empty certain")
    | fields("string", "worst_class")
    | fields(float, "worst_class_coverage")
    | fields("string", "missing"),
    limit=(
        "The promise holds on average over cases like those of the calibration set, not for "
        "each class and not at another hospital."
    ),
    wanted=lambda settings: bool(settings["studies"].get("selective_prediction")),
)
def conformal_sets(inputs: Inputs) -> Study:
    """Promised and achieved coverage of conformal prediction sets."""
    table = conformal_sets.table(inputs.of_all(_rows, inputs.predicted_cells())["conformal_sets"])
    shown = inputs.without_floors(table)
    shown = shown[shown["coverage"].notna()]
    if shown.empty:
        return not_run("no calibration or test case of known truth")
    promised = shown["promised"].iloc[0]
    sentence, findings = kept_promise(inputs, shown, "coverage", f"a coverage of {promised:g}")

    def draw(figure: Figure) -> None:
        of = mean_by_condition(shown, "coverage")
        dots(figure, inputs, of, "condition", "coverage", "achieved coverage", line=promised)

    return Study(table, sentence, findings, draw)
