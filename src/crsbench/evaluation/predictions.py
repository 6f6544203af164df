"""Kept predictions: what the full-label probes say of every test image, clean, degraded, external.

And of the calibration set, which thresholds are chosen on. With them any statistic of a test set
can be made again without images, features or probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.files import read_table, write_table
from crsbench.core.names import CALIBRATION
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import TEST
from crsbench.evaluation.runs import RunFiles, predict_run

PROBABILITY = "p_"
"""What stands before a class's name in the name of its column."""


@dataclass(frozen=True, eq=False)
class KeptPredictions:
    """One encoder × data set × seed at 100 % of the labels, of one condition.

    image_ids: (n,) str; probabilities: (n, K) float32, columns in the order of `classes`.
    """

    image_ids: np.ndarray
    probabilities: np.ndarray
    classes: tuple[str, ...]


def keep_predictions(
    output: Path | str,
    probe: str,
    manifest: str,
    split: str,
    conditions: Sequence[str],
    features: Sequence[str],
    targets: Sequence[str],
) -> None:
    """Write the predictions of one encoder, data set and seed: calibration set, then test sets.

    The file is Parquet with the columns `condition`, `image_id` and, for each class, `p_<class>`
    (float32). First stands the calibration set, under `calibration`; then the test images, sorted
    by condition in the order of `conditions` and by image.

    features: the feature file of each condition, the clean one first; targets: the manifests of the
    shift targets, which are the last of the conditions.
    """
    known = read_manifest(manifest)
    manifests = [""] * (len(conditions) - len(targets)) + list(targets)
    runs = [
        (condition, RunFiles(probe, file, manifest, split, target), TEST)
        for condition, file, target in zip(conditions, features, manifests, strict=True)
    ]
    runs.insert(0, (CALIBRATION, RunFiles(probe, features[0], manifest, split), CALIBRATION))
    parts = []
    for condition, files, part in runs:
        tested = predict_run(files, part)
        columns = {
            "condition": np.full(len(tested.image_ids), condition),
            "image_id": tested.image_ids,
        }
        for name, values in zip(known.classes, tested.probabilities.T, strict=True):
            columns[f"{PROBABILITY}{name}"] = values.astype(np.float32)
        parts.append(pd.DataFrame(columns))
    metadata = {"classes": list(known.classes), "task": known.task, "dataset": known.dataset}
    write_table(output, pd.concat(parts, ignore_index=True), metadata)


def read_predictions(path: Path | str, condition: str) -> KeptPredictions:
    """Read the predictions of one condition; UserError if the file has none of it."""
    kept = read_all_predictions(path)
    if condition not in kept:
        raise UserError(f"{path} has no predictions under '{condition}'; it has {', '.join(kept)}.")
    return kept[condition]


def read_all_predictions(path: Path | str) -> dict[str, KeptPredictions]:
    """The predictions of every condition of a file, in its order; the calibration set is first."""
    table, metadata = read_table(path)
    classes = tuple(metadata["classes"])
    probabilities = table[[f"{PROBABILITY}{name}" for name in classes]].to_numpy(np.float32)
    image_ids = table["image_id"].to_numpy()
    places = table.groupby("condition", sort=False).indices
    return {
        str(name): KeptPredictions(image_ids[rows].astype(str), probabilities[rows], classes)
        for name, rows in places.items()
    }


@dataclass(frozen=True, eq=False)
class PredictedTestSet:
    """A test set under one condition, with what every encoder and seed says of it.

    groups: (n,) str; truth: (n, S) int8 of the S classes that the tested images are labelled for;
    probabilities: encoder: (seeds, n, S) float32 of these classes, as the probe gave them.
    """

    groups: np.ndarray
    truth: np.ndarray
    probabilities: Mapping[str, np.ndarray]


def read_test_set(
    tested: Path | str, condition: str, files: Mapping[str, Sequence[Path | str]]
) -> PredictedTestSet:
    """Read the cases that every seed of every encoder has predictions of.

    Seeds share the test set, but a shift target may lack, for a seed, the patients it trained on.

    tested: manifest of the tested images (the target's for a shift); files: encoder: its files of
    kept predictions, a seed each.
    """
    manifest = read_manifest(tested)
    kept = {name: [read_predictions(file, condition) for file in of] for name, of in files.items()}
    everyone = [one for of_encoder in kept.values() for one in of_encoder]
    shared = everyone[0].image_ids
    for one in everyone[1:]:
        shared = shared[np.isin(shared, one.image_ids)]
    rows = np.searchsorted(manifest.image_ids, shared)
    if not np.array_equal(manifest.image_ids[rows.clip(max=len(manifest.image_ids) - 1)], shared):
        raise UserError(f"{tested} lacks images that predictions were kept of; rerun.")
    classes = everyone[0].classes
    judged = [k for k, name in enumerate(classes) if name in manifest.classes]
    truth = manifest.truth[rows][:, [manifest.classes.index(classes[k]) for k in judged]]
    probabilities = {
        name: np.stack(
            [
                one.probabilities[np.searchsorted(one.image_ids, shared)][:, judged]
                for one in of_encoder
            ]
        )
        for name, of_encoder in kept.items()
    }
    return PredictedTestSet(manifest.groups[rows], truth, probabilities)
