"""Operating points: is a promised sensitivity or specificity kept under blur, or elsewhere?

A threshold is chosen on each seed's calibration set and then left alone. Net benefit (Vickers and
Elkin, Med Decis Making 26:565, 2006) needs no threshold of ours: it takes the displayed probability
at its word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.core.names import CLEAN
from crsbench.evaluation.cases import CellCases, TestedCases
from crsbench.metrics.arrays import UNKNOWN
from crsbench.metrics.statistics import percentile_interval, with_intervals

FloatArray = npt.NDArray[np.float64]

RATES = ("sensitivity", "specificity", "ppv", "npv")

POINT_COLUMNS = [
    *("encoder", "dataset", "condition", "target", "aim", "promised", "threshold"),
    *("n_calibration", "n_cases", "prevalence"),
    *(f"{rate}{end}" for rate in RATES for end in ("", "_low", "_high")),
    *("shortfall", "shortfall_low", "shortfall_high", "lost", "lost_low", "lost_high", "missing"),
]
BENEFIT_COLUMNS = [
    *("encoder", "dataset", "condition", "target", "threshold"),
    *("net_benefit", "low", "high", "treat_all"),
]


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
        return float(np.nextafter(wanted[kept - 1], np.float32(np.inf))), len(wanted)


@dataclass(frozen=True, eq=False)
class Target:
    """What is to be found: any of some classes. positive: (n,) bool, known: (n,) bool."""

    name: str
    positive: np.ndarray
    known: np.ndarray
    scores: np.ndarray
    """(seeds, n) float32."""


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


def thresholds(
    cell: CellCases, targets: Mapping[str, Sequence[str]], aim: Aim
) -> dict[str, list[tuple[float, int]]]:
    """For each target the threshold of each seed and the number of cases that it rests on."""
    chosen = {}
    for name, members in targets.items():
        of_seeds = []
        for calibration in cell.calibration:
            data = calibration.truth, calibration.probabilities[None]
            one = target(name, members, list(cell.classes), *data)
            assert one is not None  # a cell judges all of its own classes
            of_seeds.append(aim.threshold(one.positive[one.known], one.scores[0][one.known]))
        chosen[name] = of_seeds
    return chosen


def hits(one: Target, cuts: Sequence[float]) -> np.ndarray:
    """(n,) over how many seeds a case is called positive; cuts: the threshold of each seed."""
    return (one.scores >= np.asarray(cuts)[:, None]).sum(axis=0)


def operating_points(
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
            cuts, counts = zip(*chosen[name], strict=True)
            row = {
                "encoder": cell.encoder,
                "dataset": cell.dataset,
                "condition": condition,
                "target": name,
                "aim": aim.rate,
                "promised": aim.promised,
                "threshold": float(np.mean(cuts)),
                "n_calibration": float(np.mean(counts)),
            }
            one = target(name, members, list(test.classes), test.truth, test.probabilities)
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


def net_benefit(
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


def typed(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table of all columns in their order, of one type each, whatever is missing."""
    table = pd.DataFrame.from_records(list(records)).reindex(columns=list(columns))
    return table.astype({name: _KINDS.get(name, "float64") for name in columns})


_KINDS = dict.fromkeys(
    (
        *("encoder", "dataset", "condition", "target", "aim", "missing", "column", "group"),
        *("metric", "worst_group", "best_group", "label", "worst_class", "score", "predictor"),
    ),
    "string",
) | dict.fromkeys(
    ("n_cases", "n_images", "n_groups", "n_classes", "n_subgroups", "n_encoders"), "Int64"
)
_KINDS["found"] = "boolean"
