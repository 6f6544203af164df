"""Control probes in the workflow: a cell's runs under other classifiers than the logistic one.

The study asks whether its conclusions depend on the classifier (protocol, section 4, point 7). The
same splits, label fractions, standardisation, conditions and metrics as for the logistic probe;
only the classifier differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from crsbench.config.grid import Cell, Run
from crsbench.core.files import read_json, write_json
from crsbench.core.names import CLEAN
from crsbench.core.progress import progress
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import TRAIN, read_split
from crsbench.evaluation.runs import CellFiles, Probe, evaluate_with, runs_frame, standardisation
from crsbench.features.store import read_features
from crsbench.probes import NEIGHBOURS, PERCEPTRON

if TYPE_CHECKING:
    from crsbench.probes.knn import NeighbourSettings
    from crsbench.probes.mlp import FittedPerceptron, PerceptronSettings


@dataclass(frozen=True)
class ControlSettings:
    """Which control probes are fitted, at which label fractions (in percent); None: not that one.

    The perceptron's seed is that of the run.
    """

    fractions: tuple[int, ...]
    neighbours: NeighbourSettings | None = None
    perceptron: PerceptronSettings | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], probe: Mapping[str, Any]) -> ControlSettings:
        """From the config's keys `control_probes` and `probe`.

        The perceptron has the logistic probe's grid of C, number of folds and time cap: the same
        budget of configurations.
        """
        from crsbench.probes.knn import NeighbourSettings
        from crsbench.probes.mlp import PerceptronSettings

        device, neighbours, perceptron = settings["device"], None, None
        if "neighbours" in settings:
            choice = settings["neighbours"]
            neighbours = NeighbourSettings(choice["k"], choice["metric"], device)
        if "perceptron" in settings:
            perceptron = PerceptronSettings(
                c_grid=tuple(probe["c_grid"]),
                folds=probe["folds"],
                time_cap_seconds=probe["time_cap_seconds"],
                device=device,
                **settings["perceptron"],
            )
        return cls(tuple(settings["fractions"]), neighbours, perceptron)


def write_control_runs(
    output: Path | str,
    cell: Cell,
    files: CellFiles,
    settings: ControlSettings,
    excluded_classes: Sequence[str] = (),
) -> None:
    """Fit and evaluate the control probes of a cell: every seed, fraction and condition.

    The file is JSON: `encoder`, `dataset` and `runs`, a list of what the run files of the logistic
    probe hold (`crsbench.evaluation.runs.evaluate_run`), with the classifier's own record under
    `probe`.
    """
    manifest = read_manifest(files.manifest)
    clean = files.features[CLEAN]
    matrix = read_features(clean, files.made_by.get(CLEAN)).rows(manifest.image_ids, clean)
    seeds = progress(
        files.splits.items(), f"{cell.encoder}/{cell.dataset}", len(files.splits), "seed"
    )
    runs: list[dict[str, Any]] = []
    for seed, split_file in seeds:
        split = read_split(split_file, manifest)
        mean, scale = standardisation(matrix[split.part == TRAIN])
        for percent in settings.fractions:
            rows = split.labelled(percent)
            train = ((matrix[rows] - mean) / scale).astype(np.float32)
            labelled = train, manifest.truth[rows], manifest.groups[rows]
            for probe, record in _fitted(labelled, manifest, seed, settings):
                record["classes_given_one_group"] = list(split.floors[percent])
                standardised = _Standardised(probe, mean, scale)
                of_fit = _conditions(standardised, cell, seed, percent, files, excluded_classes)
                runs += [{**content, "probe": record} for content in of_fit]
    write_json(output, {"encoder": cell.encoder, "dataset": cell.dataset, "runs": runs})


@dataclass(frozen=True)
class _Standardised:
    """A probe of standardised features, for features as they are stored."""

    probe: Probe
    mean: np.ndarray
    scale: np.ndarray

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        standardised = ((features - self.mean) / self.scale).astype(np.float32)
        return self.probe.predict(standardised)


def _fitted(
    labelled: tuple[np.ndarray, np.ndarray, np.ndarray],
    manifest: Manifest,
    seed: int,
    settings: ControlSettings,
) -> Iterator[tuple[Probe, dict[str, Any]]]:
    """Each control probe, fitted on (features, truth, groups), with its record for the runs."""
    from crsbench.probes.knn import fit_neighbours
    from crsbench.probes.mlp import fit_perceptron

    features, truth, groups = labelled
    if settings.neighbours is not None:
        choice = settings.neighbours
        record = {"name": NEIGHBOURS, "k": choice.neighbours, "metric": choice.metric}
        record |= {"c": [], "converged": True, "capped": False, "n_train": len(truth)}
        yield fit_neighbours(features, truth, manifest.task, choice), record
    if settings.perceptron is not None:
        seeded = replace(settings.perceptron, seed=seed)
        perceptron = fit_perceptron(features, truth, groups, manifest.task, seeded)
        yield perceptron, _perceptron_record(perceptron, manifest)


def _perceptron_record(probe: FittedPerceptron, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": PERCEPTRON,
        "c": [None if np.isnan(c) else float(c) for c in probe.c_],
        "converged": bool(probe.converged_.all()),
        "capped": probe.capped_,
        "folds": probe.folds_.tolist(),
        "epochs": probe.epochs_,
        "n_train": probe.n_train_,
        "classes_at_floor": [manifest.classes[k] for k in probe.floor_classes_],
    }


def _conditions(
    probe: Probe,
    cell: Cell,
    seed: int,
    percent: int,
    files: CellFiles,
    excluded_classes: Sequence[str],
) -> list[dict[str, Any]]:
    """The runs of one fitted probe under every condition; shift targets beside the clean run."""
    found: dict[str, dict[str, Any]] = {}
    for condition in (CLEAN, *(name for name in files.features if name != CLEAN)):
        run = Run(cell.encoder, cell.dataset, seed, condition, percent)
        read, clean = files.run(seed, condition), found.get(CLEAN)
        found[condition] = evaluate_with(probe, run, read, clean, excluded_classes)
    return list(found.values())


def collect_control_runs(files: Sequence[Path | str]) -> pd.DataFrame:
    """The table `control_runs`: the column `probe`, then those of `runs`; sorted by its keys."""
    by_probe: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        for content in read_json(file)["runs"]:
            by_probe.setdefault(content["probe"]["name"], []).append(content)
    frames = []
    for name in sorted(by_probe):
        frame = runs_frame(by_probe[name])
        frame.insert(0, "probe", name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
