"""Kept predictions: what the full-label probes say of every test image, clean, degraded, external.

And of the calibration set, which thresholds are chosen on. With them any statistic of a test set
can be made again without images, features or probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.files import read_table, write_table
from crsbench.core.names import CALIBRATION, CLEAN
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import TEST
from crsbench.evaluation.cases import CellCases, TestedCases, in_common, of_seeds
from crsbench.evaluation.runs import CellFiles, decide_run
from crsbench.metrics.arrays import FloatArray
from crsbench.metrics.statistics import draw_groups
from crsbench.probes.fitted import Decisions

LOGIT = "logit_"
"""What stands before a class's name in the name of its column."""


def keep_predictions(output: Path | str, files: CellFiles, seed: int) -> None:
    """Write the predictions of one encoder, data set and seed: calibration set, then test sets.

    The file is Parquet with the columns `condition`, `image_id` and, for each class,
    `logit_<class>` (float64), from which `crsbench.probes.fitted.Decisions` makes the probabilities
    and log-odds of the runs. Its metadata name the classes, and the classes that are predicted at a
    constant with their probability (`floors`). First stands the calibration set, under
    `calibration`; then the test images, sorted by condition in the order of `files.features` and by
    image.
    """
    known = read_manifest(files.manifest)
    runs = [(CALIBRATION, files.run(seed, CLEAN), CALIBRATION)]
    runs += [(condition, files.run(seed, condition), TEST) for condition in files.features]
    names = [f"{LOGIT}{name}" for name in known.classes]
    parts = []
    for condition, read, part in runs:
        image_ids, decided = decide_run(read, part)
        columns = {"condition": np.full(len(image_ids), condition), "image_id": image_ids}
        columns |= dict(zip(names, decided.logits.T, strict=True))
        parts.append(pd.DataFrame(columns))
    constant = [known.classes[k] for k in decided.floor_classes]
    floors = dict(zip(constant, decided.floor_probabilities.tolist(), strict=True))
    metadata = {"classes": list(known.classes), "task": known.task, "dataset": known.dataset}
    write_table(output, pd.concat(parts, ignore_index=True), metadata | {"floors": floors}, names)


def read_predictions(path: Path | str, tested: Mapping[str, Manifest]) -> dict[str, TestedCases]:
    """Read what one seed's probe says of the images of some conditions: the runs' own values.

    tested: condition (`calibration` among them): the manifest of its images. UserError: the file
    lacks one of them, or the manifest an image, or the file is of an earlier version.
    """
    table, metadata = read_table(path)
    classes = metadata["classes"]
    names = [f"{LOGIT}{name}" for name in classes]
    if "floors" not in metadata or not set(names) <= set(table):
        raise UserError(
            f"{path} was written by an earlier version: it has the columns "
            f"{', '.join(table)}, not `{LOGIT}<class>`. Make all such files again: "
            "snakemake --forcerun kept_predictions."
        )
    logits = np.stack([table[name].to_numpy(np.float64) for name in names], axis=1)
    places_of_floors = np.array([classes.index(name) for name in metadata["floors"]], dtype=int)
    floors = places_of_floors, np.array([*metadata["floors"].values()], dtype=np.float64)
    image_ids = table["image_id"].to_numpy()
    places = table.groupby("condition", sort=False).indices
    found = {}
    for condition, manifest in tested.items():
        if condition not in places:
            raise UserError(
                f"{path} has no predictions under '{condition}'; it has {', '.join(places)}."
            )
        kept = places[condition]
        rows = _rows_of(manifest, image_ids[kept].astype(str), path)
        decided = Decisions(metadata["task"], logits[kept], *floors)
        said = decided.probabilities(), decided.log_odds()
        found[condition] = TestedCases.of(metadata["task"], classes, manifest, rows, *said)
    return found


def _rows_of(manifest: Manifest, image_ids: np.ndarray, file: Path | str) -> np.ndarray:
    rows = np.searchsorted(manifest.image_ids, image_ids).clip(max=len(manifest.image_ids) - 1)
    if not np.array_equal(manifest.image_ids[rows], image_ids):
        raise UserError(
            f"{file} holds predictions of images that the manifest of '{manifest.dataset}' lacks; "
            "delete it and rerun."
        )
    return rows


def read_test_set(
    tested: Manifest, condition: str, files: Mapping[str, Sequence[Path | str]]
) -> dict[str, TestedCases]:
    """By encoder the cases that every seed of every encoder has predictions of.

    tested: manifest of the tested images (the target's for a shift); files: encoder: its files of
    kept predictions, a seed each.
    """
    encoders = [
        of_seeds([read_predictions(file, {condition: tested})[condition] for file in of_encoder])
        for of_encoder in files.values()
    ]
    return dict(zip(files, in_common(encoders), strict=True))


@dataclass(frozen=True, eq=False)
class CellReader:
    """Reads the cells of a data set; the resamples are drawn once for all its encoders.

    manifest: of the data set; conditions: that it is tested under; targets: manifests of its shift
    targets by name; replicates: number of resamples of each test set.
    """

    manifest: Manifest
    conditions: Sequence[str]
    targets: Mapping[str, Manifest]
    replicates: int
    _drawn: dict[tuple[str, bytes], FloatArray] = field(default_factory=dict)

    def read(self, encoder: str, files: Sequence[Path | str]) -> CellCases:
        """The cell of an encoder, from its files of kept predictions, a seed each."""
        tested = dict.fromkeys((CALIBRATION, *self.conditions), self.manifest) | self.targets
        seeds = [read_predictions(file, tested) for file in files]
        tests = {
            name: self._resampled(tested[name], of_seeds([seed[name] for seed in seeds]))
            for name in self.conditions
        }
        names = encoder, self.manifest.dataset, self.manifest.task, self.manifest.classes
        calibration = [seed[CALIBRATION] for seed in seeds]
        return CellCases(*names, calibration, tests, frozenset(self.targets))

    def _resampled(self, tested: Manifest, cases: TestedCases) -> TestedCases:
        rows = np.searchsorted(tested.image_ids, cases.image_ids)
        key = tested.dataset, rows.tobytes()
        if key not in self._drawn:
            purpose = f"cases of {self.manifest.dataset} tested on {tested.dataset}"
            self._drawn[key] = draw_groups(cases.groups, purpose, self.replicates)
        subgroups = tested.subgroups.iloc[rows].reset_index(drop=True)
        return replace(cases, subgroups=subgroups, weights=self._drawn[key])
