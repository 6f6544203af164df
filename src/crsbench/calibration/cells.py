"""One cell's recalibration: what the four calibrators make of its full-label probes' predictions.

Each seed's calibrators are fitted on its clean calibration set and applied, unchanged, to its test
set under every condition and to the shift targets. Beside that, how many cases they need: fitted on
the first k cases of the calibration set, and on k cases of a shift target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from crsbench.calibration import CHOSEN, METHODS, NONE, SOURCE
from crsbench.calibration.calibrators import Calibrator
from crsbench.calibration.selection import brier_by_method, fit_all, least, out_of_fold
from crsbench.config.layout import RECALIBRATED_PARTS
from crsbench.core.hashing import sha256_number
from crsbench.core.names import CALIBRATION, CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import TEST
from crsbench.evaluation.cases import TestedCases
from crsbench.evaluation.runs import CellFiles, predict_run
from crsbench.metrics.calibration_error import N_BINS
from crsbench.metrics.run_metrics import RunMetrics

METRIC_COLUMNS = ["n_test", "ece", "ece_if_calibrated", "brier", "log_loss", "macro_auroc"]
RECALIBRATED_COLUMNS = [
    "seed", "condition", "method", "chosen", "cv_brier", "n_calibration", *METRIC_COLUMNS,
]  # fmt: skip
RELIABILITY_COLUMNS = [
    "condition", "method", "label", "bin", "low", "high", "count", "mean_confidence", "accuracy",
]  # fmt: skip
CASES_COLUMNS = ["target", "seed", "method", "cases", *METRIC_COLUMNS]


@dataclass(frozen=True, eq=False)
class RecalibratedCell:
    """The three tables of a cell, without the columns `encoder` and `dataset`.

    recalibrated: seed × condition × method. reliability: condition × method × label × bin, cases
    of all seeds together, for the clean test set and the shift targets. cases: target × seed ×
    method × number of cases; where `target` is the data set itself, they are cases of its
    calibration set.
    """

    recalibrated: pd.DataFrame
    reliability: pd.DataFrame
    cases: pd.DataFrame

    def parts(self) -> list[pd.DataFrame]:
        """The tables in the order of `RECALIBRATED_PARTS`."""
        return [getattr(self, name) for name in RECALIBRATED_PARTS]


def recalibrate_cell(files: CellFiles, sizes: Sequence[int]) -> RecalibratedCell:
    """Make a cell's tables.

    sizes: numbers of labelled cases to try; larger ones than there are cases are left out, but all
    cases of the calibration set are always tried, and all that a target gives if a size asks for
    more.
    """
    seeds = [_Seed(files, seed) for seed in files.probes]
    rows, cases, bins = [], [], _BinSums()
    for condition in files.features:
        for one in seeds:
            for method, metrics in one.versions(condition).items():
                rows.append(one.record(condition, method, metrics))
                if condition == CLEAN or condition in files.targets:
                    bins.add(condition, method, metrics)
                    if method == one.chosen:
                        bins.add(condition, CHOSEN, metrics)
    for one in seeds:
        cases += one.cases_of_source(sizes)
        for target in files.targets:
            cases += one.cases_of_target(target, sizes)
    return RecalibratedCell(
        pd.DataFrame(rows, columns=RECALIBRATED_COLUMNS).astype({"macro_auroc": "float64"}),
        bins.table(),
        pd.DataFrame(cases, columns=CASES_COLUMNS).astype({"macro_auroc": "float64"}),
    )


def _fit(cases: TestedCases) -> dict[str, Calibrator]:
    return fit_all(cases.task, cases.given, cases.truth, cases.groups)


def _cross_validated(cases: TestedCases) -> dict[str, float]:
    """Brier score by method out of fold; ``none`` among them."""
    versions = out_of_fold(cases.task, cases.given, cases.truth, cases.groups)
    return brier_by_method(cases.task, versions, cases.truth)


def _recalibrated(cases: TestedCases, calibrator: Calibrator) -> RunMetrics:
    # A label's temperature keeps its ranking, which no rounding near 0 or 1 should touch.
    keeps = calibrator.name == "temperature" and cases.task == "multilabel"
    made = calibrator.recalibrate(cases.given)
    return replace(cases, given=made, scores=cases.ranking if keeps else None).metrics()


def _best(cross_validated: Mapping[str, float]) -> str:
    """The best of the four methods; of equal ones the simplest."""
    return least({name: cross_validated[name] for name in METHODS})


class _Seed:
    """One seed's calibrators and what they are tested on."""

    def __init__(self, files: CellFiles, seed: int) -> None:
        self._files, self.seed = files, seed
        self._dataset = read_manifest(files.manifest).dataset
        self._calibration = self._cases(CLEAN, CALIBRATION)
        self._calibrators = _fit(self._calibration)
        self._cross_validated = _cross_validated(self._calibration)
        self.chosen = _best(self._cross_validated)

    def _cases(self, condition: str, part: str = TEST) -> TestedCases:
        return predict_run(self._files.run(self.seed, condition), part)

    def versions(self, condition: str) -> dict[str, RunMetrics]:
        """The test set of a condition by method, as it is and recalibrated."""
        cases = self._cases(condition)
        found = {name: _recalibrated(cases, of) for name, of in self._calibrators.items()}
        return {NONE: cases.metrics(), **found}

    def record(self, condition: str, method: str, metrics: RunMetrics) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "condition": condition,
            "method": method,
            "chosen": method == self.chosen,
            "cv_brier": self._cross_validated[method],
            "n_calibration": len(self._calibration),
            **_measures(metrics),
        }

    def cases_of_source(self, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Calibrators of the first k cases of the calibration set, on the clean test set."""
        name, whole, tested = self._dataset, self._calibration, self._cases(CLEAN)
        order = _order(whole.groups, f"cases of {name}")
        found = [self._point(name, NONE, 0, tested.metrics())]
        for size in _fitting(sizes, len(whole) - 1):
            found += self._fitted_on(name, whole.take(np.sort(order[:size])), tested)
        return found + self._points(name, self._calibrators, self.chosen, len(whole), tested)

    def cases_of_target(self, target: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Calibrators of k cases of a shift target, on the other half of its groups."""
        elsewhere = self._cases(target)
        order = _order(elsewhere.groups, f"cases of {target}")
        groups = list(dict.fromkeys(elsewhere.groups[order].tolist()))
        pooled = np.isin(elsewhere.groups, groups[: len(groups) // 2])
        pool, tested = order[pooled[order]], elsewhere.take(np.flatnonzero(~pooled))
        of_source = _recalibrated(tested, self._calibrators[self.chosen])
        found = [
            self._point(target, NONE, 0, tested.metrics()),
            self._point(target, SOURCE, 0, of_source),
        ]
        tested = tested.of_judged_classes()
        whole = [len(pool)] if 0 < len(pool) < max(sizes, default=0) else []
        for size in sorted({*_fitting(sizes, len(pool)), *whole}):
            labelled = elsewhere.take(np.sort(pool[:size])).of_judged_classes()
            found += self._fitted_on(target, labelled, tested)
        return found

    def _fitted_on(
        self, target: str, labelled: TestedCases, tested: TestedCases
    ) -> list[dict[str, Any]]:
        chosen = _best(_cross_validated(labelled))
        return self._points(target, _fit(labelled), chosen, len(labelled), tested)

    def _points(
        self,
        target: str,
        calibrators: Mapping[str, Calibrator],
        chosen: str,
        size: int,
        tested: TestedCases,
    ) -> list[dict[str, Any]]:
        metrics = {name: _recalibrated(tested, of) for name, of in calibrators.items()}
        metrics[CHOSEN] = metrics[chosen]
        return [self._point(target, name, size, of) for name, of in metrics.items()]

    def _point(self, target: str, method: str, size: int, metrics: RunMetrics) -> dict[str, Any]:
        point = {"target": target, "seed": self.seed, "method": method, "cases": size}
        return point | _measures(metrics)


class _BinSums:
    """Reliability bins of several seeds, added up."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], np.ndarray] = {}

    def add(self, condition: str, method: str, metrics: RunMetrics) -> None:
        for label, bins in metrics.reliability.items():
            parts = bins.count * np.nan_to_num([bins.mean_confidence, bins.accuracy])
            key = (condition, method, label)
            self._sums[key] = self._sums.get(key, 0) + np.vstack([bins.count, parts])

    def table(self) -> pd.DataFrame:
        places = np.arange(N_BINS)
        parts = []
        for (condition, method, label), (count, confidence, hits) in self._sums.items():
            columns = {"condition": condition, "method": method, "label": label, "bin": places}
            columns |= {"low": places / N_BINS, "high": (places + 1) / N_BINS}
            filled = np.where(count > 0, count, np.nan)
            columns |= {"count": count.astype(np.int64), "mean_confidence": confidence / filled}
            parts.append(pd.DataFrame(columns | {"accuracy": hits / filled}))
        return pd.concat(parts, ignore_index=True)[RELIABILITY_COLUMNS]


def _measures(metrics: RunMetrics) -> dict[str, float | None]:
    return {name: getattr(metrics, name) for name in METRIC_COLUMNS}


def _fitting(sizes: Sequence[int], available: int) -> list[int]:
    return sorted(size for size in sizes if size <= available)


def _order(groups: np.ndarray, purpose: str) -> np.ndarray:
    """Rows (n,) in the order to label them: groups by the SHA-256 of purpose and name."""
    names, of_row = np.unique(groups, return_inverse=True)
    keys = np.array([sha256_number(purpose, name) for name in names], dtype=np.uint64)
    return np.argsort(keys[of_row], kind="stable")
