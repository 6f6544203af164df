"""What the studies of test cases share: one cell's kept predictions, and resamples of its cases.

A cell is an encoder on a data set. Its probes predict three kinds of images: each seed's
calibration set, on which thresholds are chosen; the test set, clean and degraded; the sets of its
shift targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.config.model import Task
from crsbench.core.errors import UserError
from crsbench.core.names import CALIBRATION
from crsbench.data.manifest import Manifest
from crsbench.evaluation.predictions import KeptPredictions, read_all_predictions
from crsbench.metrics.arrays import UNKNOWN
from crsbench.metrics.run_metrics import renormalised
from crsbench.metrics.statistics import draw_groups, percentile_interval

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CalibrationCases:
    """One seed's calibration set. truth: (m, K) int8; probabilities: (m, K) float32."""

    truth: np.ndarray
    probabilities: np.ndarray


@dataclass(frozen=True, eq=False)
class TestedCases:
    """A test set under one condition, and what each seed's probe says of it.

    classes: the S classes that the tested images are labelled for; groups: (n,) str; truth: (n, S)
    int8; probabilities: (seeds, n, S) float32, as the probe gave them; subgroups: n rows of the
    manifest's further columns; weights: (1 + R, n), how often each case occurs in the test set
    itself (the first row, all ones) and in R resamples of whole groups.
    """

    classes: tuple[str, ...]
    groups: np.ndarray
    truth: np.ndarray
    probabilities: np.ndarray
    subgroups: pd.DataFrame
    weights: FloatArray

    @property
    def known(self) -> np.ndarray:
        """(n, S): whether it is known if the label holds."""
        return self.truth != UNKNOWN


@dataclass(frozen=True, eq=False)
class Cell:
    """An encoder on a data set: its calibration sets by seed, its test sets by condition."""

    encoder: str
    dataset: str
    task: Task
    classes: tuple[str, ...]
    calibration: Sequence[CalibrationCases]
    tests: Mapping[str, TestedCases]
    targets: frozenset[str]

    @property
    def undegraded(self) -> list[str]:
        """The conditions whose images are as they were taken: clean and the shift targets."""
        return [name for name in self.tests if name == "clean" or name in self.targets]

    def confidences(self, test: TestedCases) -> FloatArray:
        """(seeds, n, S) float64: probabilities that are fit for a judgement of their calibration.

        A multi-class probe on a target with some of its classes: given that one of them is true.
        """
        if self.task == "multiclass" and len(test.classes) < len(self.classes):
            return np.stack([renormalised(of_seed) for of_seed in test.probabilities])
        return test.probabilities.astype(np.float64)


@dataclass(frozen=True, eq=False)
class CellReader:
    """Reads the cells of a data set; the resamples are drawn once for all its encoders.

    manifest: of the data set; targets: manifests of its shift targets by name; replicates: number
    of resamples of each test set.
    """

    manifest: Manifest
    targets: Mapping[str, Manifest]
    replicates: int

    def read(self, encoder: str, files: Sequence[Path | str]) -> Cell:
        """The cell of an encoder, from its files of kept predictions, a seed each."""
        kept = [read_all_predictions(file) for file in files]
        conditions = [name for name in kept[0] if name != CALIBRATION]
        for file, of_seed in zip(files, kept, strict=True):
            if [*of_seed] != [CALIBRATION, *conditions]:
                raise UserError(
                    f"{file} was kept by another release or under other conditions; delete it and "
                    "rerun."
                )
        calibration = []
        for file, of_seed in zip(files, kept, strict=True):
            one = of_seed[CALIBRATION]
            rows = _rows_of(self.manifest, one.image_ids, file)
            calibration.append(CalibrationCases(self.manifest.truth[rows], one.probabilities))
        tests = {
            name: self._tested(name, [of_seed[name] for of_seed in kept], files[0])
            for name in conditions
        }
        names = encoder, self.manifest.dataset, self.manifest.task, self.manifest.classes
        return Cell(*names, calibration, tests, frozenset(self.targets))

    def _tested(self, condition: str, kept: Sequence[KeptPredictions], file: Path | str):
        """Seeds share the test set; a shift target may lack, for a seed, whom it trained on."""
        manifest = self.targets.get(condition, self.manifest)
        shared = kept[0].image_ids
        for one in kept[1:]:
            if not np.array_equal(one.image_ids, shared):
                shared = shared[np.isin(shared, one.image_ids)]
        rows = _rows_of(manifest, shared, file)
        own = self.manifest.classes
        judged = [k for k, name in enumerate(own) if name in manifest.classes]
        classes = tuple(own[k] for k in judged)
        probabilities = [
            one.probabilities[np.searchsorted(one.image_ids, shared)][:, judged] for one in kept
        ]
        return TestedCases(
            classes,
            manifest.groups[rows],
            manifest.truth[rows][:, [manifest.classes.index(name) for name in classes]],
            np.stack(probabilities),
            manifest.subgroups.iloc[rows].reset_index(drop=True),
            self._weights(manifest, rows),
        )

    @cached_property
    def _drawn(self) -> dict[tuple[str, bytes], FloatArray]:
        return {}

    def _weights(self, manifest: Manifest, rows: np.ndarray) -> FloatArray:
        key = manifest.dataset, rows.tobytes()
        if key not in self._drawn:
            purpose = f"cases of {self.manifest.dataset} tested on {manifest.dataset}"
            self._drawn[key] = draw_groups(manifest.groups[rows], purpose, self.replicates)
        return self._drawn[key]


def _rows_of(manifest: Manifest, image_ids: np.ndarray, file: Path | str) -> np.ndarray:
    rows = np.searchsorted(manifest.image_ids, image_ids).clip(max=len(manifest.image_ids) - 1)
    if not np.array_equal(manifest.image_ids[rows], image_ids):
        raise UserError(
            f"{file} holds predictions of images that the manifest of '{manifest.dataset}' lacks; "
            "delete it and rerun."
        )
    return rows


def with_intervals(values: Mapping[str, FloatArray]) -> dict[str, float]:
    """`x`, `x_low`, `x_high` of each name from (1 + R,) values: the test set's, its resamples'."""
    table = np.stack(list(values.values()), axis=1)
    low, high = percentile_interval(table[1:])
    found = {}
    for k, name in enumerate(values):
        found |= {name: float(table[0, k])}
        found |= {f"{name}_low": float(low[k]), f"{name}_high": float(high[k])}
    return found


def value_with_interval(values: FloatArray) -> dict[str, float]:
    """`value`, `low`, `high` from (1 + R,) values."""
    low, high = percentile_interval(values[1:])
    return {"value": float(values[0]), "low": float(low), "high": float(high)}
