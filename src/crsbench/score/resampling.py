"""What resamples of the test cases make of a cell's runs: one pass over its features and probes.

The joint bootstrap (:mod:`crsbench.score.joint`) is made of these files, one for each encoder ×
data set, so that nothing of a whole panel is held at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crsbench.core.errors import UserError
from crsbench.core.files import damaged, read_arrays, write_arrays
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.cases import TestedCases
from crsbench.evaluation.runs import CellFiles, predict_run
from crsbench.metrics.arrays import FloatArray
from crsbench.metrics.influence import auroc_influence, run_ece_influence
from crsbench.metrics.statistics import draw_groups
from crsbench.score.joint import AUROC, ECE, SOURCE, TARGET, Resamples

Statistic = tuple[str, int, str]


def resample_cell(
    output: Path | str, files: Mapping[int, CellFiles], seeds: Sequence[int], replicates: int
) -> None:
    """Resample the cases that the axes of an encoder on a data set are made of, and write them.

    A replicate draws whole groups with replacement, the same for all encoders, seeds and conditions
    of a test set: the draws follow from the SHA-256 of the names of the data set and of the tested
    one. What a replicate does to a statistic is taken to first order, by influence values.

    Args:
        files: by percent of the labels, with the probes of all seeds; the features of the clean
            test set below 100 %, of all conditions at 100 %.
        seeds: in their order.
        replicates: number of resamples.
    """
    dataset = read_manifest(files[100].manifest).dataset
    draws: dict[tuple[str, bytes], FloatArray] = {}
    statistics: list[Statistic] = []
    values, changes, clean = [], [], {}
    for seed in seeds:
        found: dict[Statistic, tuple[float, FloatArray]] = {}
        for percent, of_percent in sorted(files.items(), reverse=True):
            for condition in of_percent.features:
                tested = predict_run(of_percent.run(seed, condition))
                on = condition if condition in of_percent.targets else dataset
                weights = _drawn(draws, dataset, on, tested, replicates)
                moved = _Moved(tested, weights)
                if condition == CLEAN and percent == 100:
                    clean[seed] = moved
                    found[CLEAN, 100, ECE] = moved.ece()
                found[condition, percent, AUROC] = moved.auroc(tested.classes)
                if condition in of_percent.targets:
                    shared = [
                        name for name in moved.defined if name in clean[seed].defined
                    ]  # as a run's source_macro_auroc and target_macro_auroc
                    found[condition, 100, SOURCE] = clean[seed].auroc(shared)
                    found[condition, 100, TARGET] = moved.auroc(shared)
        statistics = list(found)
        values.append([value for value, _ in found.values()])
        changes.append(np.stack([change for _, change in found.values()], axis=1))
    first = clean[seeds[0]].cases
    write_arrays(
        output,
        statistics=np.array([f"{c}\t{p}\t{name}" for c, p, name in statistics]),
        seeds=np.array(seeds, dtype=np.int64),
        values=np.array(values),
        changes=np.stack(changes, axis=1),
        sizes=np.array([len(first), len(np.unique(first.groups))], dtype=np.int64),
    )


def read_resamples(file: Path | str) -> Resamples:
    """Read what `resample_cell` wrote; UserError naming the file when it is not whole."""
    arrays = read_arrays(file)
    try:
        names = [tuple(name.split("\t")) for name in arrays["statistics"].tolist()]
        statistics = [(condition, int(percent), kind) for condition, percent, kind in names]
        cases, groups = arrays["sizes"].tolist()
        parts = arrays["seeds"], arrays["values"], arrays["changes"]
    except (KeyError, ValueError) as error:
        raise damaged(file, error) from error
    if not parts[2].shape[1:] == parts[1].shape == (len(parts[0]), len(statistics)):
        raise UserError(f"{file} holds arrays that do not fit together; delete it and rerun.")
    return Resamples(statistics, *parts, cases, groups)


class _Moved:
    """One seed's test set, and what the resamples (R, n) do to its statistics."""

    def __init__(self, cases: TestedCases, weights: FloatArray) -> None:
        self.cases, self._weights = cases, weights
        self._auroc, self._influence = auroc_influence(cases.truth, cases.ranking)

    @property
    def defined(self) -> list[str]:
        """The classes with an AUROC."""
        known = ~np.isnan(self._auroc)
        return [name for name, one in zip(self.cases.classes, known, strict=True) if one]

    def auroc(self, classes: Sequence[str]) -> tuple[float, FloatArray]:
        """Macro-AUROC over the defined ones of some classes, and its change (R,) by resample."""
        among = [k for k, name in enumerate(self.cases.classes) if name in set(classes)]
        among = [k for k in among if not np.isnan(self._auroc[k])]
        if not among:
            return float("nan"), np.full(len(self._weights), np.nan)
        return float(self._auroc[among].mean()), self._change(self._influence[:, among].mean(1))

    def ece(self) -> tuple[float, FloatArray]:
        cases = self.cases
        value, influence = run_ece_influence(cases.task, cases.truth, cases.confidences())
        return value, self._change(influence)

    def _change(self, influence: FloatArray) -> FloatArray:
        # T(w) − T ≈ 1/n Σ_i (w_i − 1) φ_i = 1/n Σ_i w_i φ_i, since Σ_i φ_i = 0
        return self._weights @ influence / len(influence)


def _drawn(
    draws: dict[tuple[str, bytes], FloatArray],
    dataset: str,
    on: str,
    tested: TestedCases,
    replicates: int,
) -> FloatArray:
    """(R, n) how often each case occurs in each resample; drawn once for a set of cases."""
    key = on, tested.image_ids.tobytes()
    if key not in draws:
        name = f"joint bootstrap: cases of {dataset} tested on {on}"
        draws[key] = draw_groups(tested.groups, name, replicates)[1:]
    return draws[key]
