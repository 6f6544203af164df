"""Operating points: is a promised sensitivity or specificity kept under blur, or elsewhere?

A threshold is chosen on each seed's calibration set and then left alone. Net benefit (Vickers and
Elkin, Med Decis Making 26:565, 2006) needs no threshold of ours: it takes the displayed probability
at its word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.names import CLEAN, number
from crsbench.evaluation.cases import CellCases, TestedCases
from crsbench.metrics.arrays import UNKNOWN
from crsbench.metrics.statistics import percentile_interval, with_intervals
from crsbench.studies.figures import Figure, dataset_panels, dots, line_legend, lines
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import TESTED, Finding, Row, Study, fields, not_run, study

FloatArray = npt.NDArray[np.float64]

RATES = ("sensitivity", "specificity", "ppv", "npv")


@dataclass(frozen=True)
class Aim:
    """What a threshold promises: a sensitivity or a specificity."""

    rate: str
    promised: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Aim:
        rate = "sensitivity" if "sensitivity" in settings else "specificity"
        return cls(rate, float(settings[rate]))

    def threshold(self, positive: np.ndarray, scores: np.ndarray) -> tuple[float, int]:
        """The threshold that keeps the promise on calibration cases, and how many it rests on.

        A case is called positive if its score reaches the threshold. For a sensitivity it is the
        highest threshold that keeps it, for a specificity the lowest.

        positive: (m,) bool; scores: (m,). NaN without a positive (or negative) case.
        """
        wanted = np.sort(scores[positive if self.rate == "sensitivity" else ~positive])
        if not len(wanted):
            return float("nan"), 0
        # The least count whose share is the promise; 0.95 · 20 must not round up to 20.
        kept = int(np.ceil(self.promised * len(wanted) - 1e-9))
        if self.rate == "sensitivity":
            return float(wanted[len(wanted) - kept]), len(wanted)
        return float(np.nextafter(wanted[kept - 1], wanted.dtype.type(np.inf))), len(wanted)


@dataclass(frozen=True, eq=False)
class Target:
    """What is to be found: any of some classes. positive: (n,) bool, known: (n,) bool."""

    name: str
    positive: np.ndarray
    known: np.ndarray
    scores: np.ndarray
    """(seeds, n), what is compared to a threshold."""


def target(
    name: str,
    members: Sequence[str],
    classes: Sequence[str],
    truth: np.ndarray,
    probabilities: np.ndarray,
) -> Target | None:
    """A target among the judged classes, None where one of its own is not judged.

    truth: (n, S); probabilities: (seeds, n, S), those of the target's classes are added up.
    """
    if not set(members) <= set(classes):
        return None
    columns = [classes.index(member) for member in members]
    own = truth[:, columns]
    scores = probabilities[:, :, columns[0]].copy()
    for column in columns[1:]:
        scores += probabilities[:, :, column]
    return Target(name, (own == 1).any(axis=1), (own != UNKNOWN).all(axis=1), scores)


def ranked_target(name: str, members: Sequence[str], cases: TestedCases) -> Target | None:
    """As `target`, of cases with or without seeds; the scores are log-odds where cases have them.

    Of several classes that exclude each other the log-odds are those of their sum. Labels that do
    not exclude each other have none: their probabilities are added up.
    """
    given = cases.probabilities.reshape(-1, *cases.truth.shape)
    one = target(name, members, list(cases.classes), cases.truth, given)
    if one is None or cases.scores is None:
        return one
    columns = cases.shared[[cases.classes.index(member) for member in members]]
    scores = cases.scores.reshape(len(given), len(cases), -1)
    if len(columns) == 1:
        return replace(one, scores=scores[:, :, columns[0]])
    if cases.task == "multilabel":
        return one
    # ln p_k = -ln(1 + exp(-z_k)), and ln of the members' sum less ln of the others' sum.
    logs = -np.logaddexp(0.0, -scores)
    others = np.delete(logs, columns, axis=2)
    sums = [np.logaddexp.reduce(part, axis=2) for part in (logs[:, :, columns], others)]
    return replace(one, scores=sums[0] - sums[1])


def thresholds(
    cell: CellCases, targets: Mapping[str, Sequence[str]], aim: Aim
) -> dict[str, list[tuple[float, int, float]]]:
    """For each target of each seed the threshold, how many cases it rests on, and as probability.

    The threshold is one of the scores of `ranked_target`.
    """
    chosen = {}
    for name, members in targets.items():
        of_seeds = []
        for calibration in cell.calibration:
            one = ranked_target(name, members, calibration)
            data = calibration.truth, calibration.probabilities[None]
            displayed = target(name, members, list(cell.classes), *data)
            assert one is not None  # a cell judges all of its own classes
            assert displayed is not None
            positive = one.positive[one.known]
            cut, count = aim.threshold(positive, one.scores[0][one.known])
            shown, _ = aim.threshold(positive, displayed.scores[0][one.known])
            of_seeds.append((cut, count, shown))
        chosen[name] = of_seeds
    return chosen


def hits(one: Target, cuts: Sequence[float]) -> np.ndarray:
    """(n,) over how many seeds a case is called positive; cuts: the threshold of each seed."""
    return (one.scores >= np.asarray(cuts)[:, None]).sum(axis=0)


def operating_points_of(
    cell: CellCases, targets: Mapping[str, Sequence[str]], aim: Aim
) -> list[dict[str, Any]]:
    """The rows of the table `operating_points` for a cell, all its conditions.

    Counts are added up over the seeds, each with its own threshold: for the rates that all seeds
    share the denominator of, that is their mean. `shortfall` is the promise less what was achieved,
    which few calibration cases miss by chance; `lost` is what was achieved on the clean test set
    less what is under the condition, at the same threshold.
    """
    chosen = thresholds(cell, targets, aim)
    records = []
    clean: dict[str, FloatArray] = {}
    for condition, test in cell.tests.items():
        for name, members in targets.items():
            cuts, counts, shown = zip(*chosen[name], strict=True)
            row = {
                "encoder": cell.encoder,
                "dataset": cell.dataset,
                "condition": condition,
                "target": name,
                "aim": aim.rate,
                "promised": aim.promised,
                "threshold": float(np.mean(shown)),
                "n_calibration": float(np.mean(counts)),
            }
            one = ranked_target(name, members, test)
            found, achieved = _point(one, cuts, test, aim)
            if condition == CLEAN:
                clean[name] = achieved
            else:
                found |= with_intervals({"lost": clean[name] - achieved})
            records.append(row | found)
    return records


def _point(
    one: Target | None, cuts: Sequence[float], test: TestedCases, aim: Aim
) -> tuple[dict[str, Any], FloatArray]:
    """What to write of a target on a test set, and the (1 + R,) rate that was promised."""
    nothing = np.full(len(test.weights), np.nan)
    if one is None:
        return {"missing": "the tested data set lacks one of the target's classes"}, nothing
    if np.isnan(cuts).any():
        kind = "positive" if aim.rate == "sensitivity" else "negative"
        return {"missing": f"the calibration set of a seed has no {kind} case"}, nothing
    rates, prevalence = counted_rates(one, cuts, test.weights)
    found: dict[str, Any] = {"n_cases": int(one.known.sum()), "prevalence": float(prevalence[0])}
    found |= with_intervals({**rates, "shortfall": aim.promised - rates[aim.rate]})
    if np.isnan(rates[aim.rate][0]):
        found["missing"] = f"the test set has no case to count {aim.rate} on"
    return found, rates[aim.rate]


def counted_rates(
    one: Target, cuts: Sequence[float], weights: FloatArray
) -> tuple[dict[str, FloatArray], FloatArray]:
    """The four rates and the prevalence, each (r,), from weights (r, n); NaN for 0 / 0."""
    called = hits(one, cuts)
    n_seeds = len(cuts)
    columns = [one.positive, ~one.positive, one.positive * called, ~one.positive * called]
    counts = weights @ (np.stack(columns, axis=1) * one.known[:, None]).astype(np.float64)
    positive, negative, true_positive, false_positive = counts.T
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN we want
        rates = {
            "sensitivity": true_positive / (n_seeds * positive),
            "specificity": 1 - false_positive / (n_seeds * negative),
            "ppv": true_positive / (true_positive + false_positive),
            "npv": (n_seeds * negative - false_positive)
            / (n_seeds * (positive + negative) - true_positive - false_positive),
        }
        return rates, positive / (positive + negative)


def net_benefit_of(
    cell: CellCases, targets: Mapping[str, Sequence[str]], cuts: Sequence[float]
) -> list[dict[str, Any]]:
    """The rows of the table `net_benefit`: the decision curve of each condition and target.

    TP/n − FP/n · t/(1 − t) at the threshold probability t, mean over seeds; to treat nobody is
    worth 0, to treat all prevalence − (1 − prevalence) · t/(1 − t).
    """
    records = []
    for condition, test in cell.tests.items():
        confidences = test.confidences()
        for name, members in targets.items():
            one = target(name, members, list(test.classes), test.truth, confidences)
            if one is None or not one.known.any():
                continue
            row = {"encoder": cell.encoder, "dataset": cell.dataset, "condition": condition}
            curve = _decision_curve(one, cuts, test.weights)
            records += [row | {"target": name} | point for point in curve]
    return records


def _decision_curve(
    one: Target, cuts: Sequence[float], weights: FloatArray
) -> list[dict[str, float]]:
    n_seeds = len(one.scores)
    called = np.stack([hits(one, [cut] * n_seeds) for cut in cuts], axis=1)
    odds = np.array([cut / (1 - cut) for cut in cuts])
    gain = np.where(one.positive[:, None], called, -called * odds) * one.known[:, None]
    n = weights @ one.known.astype(np.float64)
    with np.errstate(invalid="ignore"):  # a resample without a known case has no value
        values = (weights @ gain) / (n_seeds * n)[:, None]
    prevalence = float((one.positive & one.known).sum() / one.known.sum())
    low, high = percentile_interval(values[1:])
    return [
        {
            "threshold": float(cut),
            "net_benefit": float(values[0, k]),
            "low": float(low[k]),
            "high": float(high[k]),
            "treat_all": prevalence - (1 - prevalence) * odds[k],
        }
        for k, cut in enumerate(cuts)
    ]


# --- the studies ----------------------------------------------------------------------------------


def targets_and_aim(inputs: Inputs, dataset: str) -> tuple[dict[str, list[str]], Aim | None]:
    """A data set's targets, as the registry names them, and the config's aim, if it has one."""
    spec = inputs.datasets[dataset]
    named = spec.get("positive_classes", {name: [name] for name in spec["classes"]})
    points = inputs.settings["studies"].get("operating_points")
    return named, Aim.of(points) if points else None


def _rows(inputs: Inputs, cell: CellCases) -> dict[str, list[Row]]:
    targets, aim = targets_and_aim(inputs, cell.dataset)
    assert aim is not None  # the studies are wanted only with one
    cuts = inputs.settings["studies"]["operating_points"].get("net_benefit", ())
    return {
        "operating_points": operating_points_of(cell, targets, aim),
        "net_benefit": net_benefit_of(cell, targets, cuts) if cuts else [],
    }


@study(
    title="At a fixed operating point",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("string", "target aim")
    | fields(float, "promised threshold n_calibration")
    | fields("Int64", "n_cases")
    | fields(float, "prevalence")
    | fields(float, " ".join(f"{rate} {rate}_low {rate}_high" for rate in RATES))
    | fields(float, "shortfall shortfall_low shortfall_high lost lost_low lost_high")
    | fields("string", "missing"),
    limit="Thresholds chosen on this bench's images. A clinic has its own prevalence and costs.",
    wanted=lambda settings: bool(settings["studies"].get("operating_points")),
)
def operating_points(inputs: Inputs) -> Study:
    """Whether the promised rate is kept, on clean, degraded and external images."""
    table = operating_points.table(
        inputs.of_all(_rows, inputs.predicted_cells())["operating_points"]
    )
    shown = inputs.without_floors(table)
    shown = shown[shown["shortfall"].notna()]
    if shown.empty:
        return Study(table, "Not run: no target has calibration and test cases.")
    aim, promised = shown["aim"].iloc[0], shown["promised"].iloc[0]
    shown = shown.assign(achieved=shown["promised"] - shown["shortfall"])
    sentence, findings = kept_promise(inputs, shown, "achieved", f"a {aim} of {promised:g}")
    few = shown.loc[shown["condition"] == CLEAN, "n_calibration"].median()
    case = "positive" if aim == "sensitivity" else "negative"
    sentence += f" The median threshold rests on {few:g} {case} calibration cases."

    def draw(figure: Figure) -> None:
        of = mean_by_condition(shown, "achieved")
        dots(figure, inputs, of, "condition", "achieved", f"achieved {aim}", line=promised)

    return Study(table, sentence, findings, draw)


@study(
    title="Net benefit by threshold",
    theme="use",
    needs=("kept_predictions",),
    columns=TESTED
    | fields("string", "target")
    | fields(float, "threshold net_benefit low high treat_all"),
    limit="The threshold stands for a trade of harms that only a clinic can name.",
    wanted=lambda settings: "net_benefit" in (settings["studies"].get("operating_points") or {}),
)
def net_benefit(inputs: Inputs) -> Study:
    """Decision curves: what the displayed probabilities are worth beside treating all or nobody."""
    table = net_benefit.table(inputs.of_all(_rows, inputs.predicted_cells())["net_benefit"])
    clean = inputs.without_floors(table)
    clean = clean[(clean["condition"] == CLEAN) & clean["net_benefit"].notna()]
    if clean.empty:
        return not_run("no target has test cases of known truth")
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
        for panel, rows in dataset_panels(figure, inputs, clean, (4.4, 3.4)):
            target = rows["target"].iloc[0]
            of = rows[rows["target"] == target]
            lines(panel, inputs, of, "threshold", "net_benefit")
            one = of[of["encoder"] == of["encoder"].iloc[0]]
            panel.plot(one["threshold"], one["treat_all"], color="black", linewidth=0.8)
            panel.axhline(0, color="black", linewidth=0.5)
            panel.set(xlabel="threshold probability", ylabel="net benefit")
            panel.set_ylim(bottom=-0.05)
            panel.set_title(f"{panel.get_title()}: {target}")
        line_legend(figure, inputs, clean["encoder"].unique())

    return Study(table, sentence, findings, draw)


def kept_promise(
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


def mean_by_condition(shown: pd.DataFrame, column: str) -> pd.DataFrame:
    """Means over targets or labels, in the order of the conditions."""
    keys = ["dataset", "encoder", "condition"]
    return shown.groupby(keys, sort=False)[column].mean().reset_index()
