"""Probes and runs: from features to fitted probes, from probes to the metrics of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import TEST, TRAIN, Split, read_split
from crsbench.errors import UserError
from crsbench.features.store import Features, read_features
from crsbench.files import read_json, write_json
from crsbench.grid import Run
from crsbench.metrics import run_metrics
from crsbench.probes import FittedProbe, ProbeSettings

CACHED_FILES = 16
"""How many feature files, manifests and splits a process keeps mapped or in memory."""

CACHED_PROBES = 256
"""How many probes a process keeps; the published panel's largest take 130 kB each."""

RUN_COLUMNS = (
    *("encoder", "dataset", "seed", "condition", "percent", "n_test"),
    *("macro_auroc", "ece", "classwise_ece", "adaptive_ece", "brier", "log_loss"),
    *("n_classes", "n_classes_defined", "c", "converged", "capped"),
)


@dataclass(frozen=True)
class RunFiles:
    """The files that a run reads; `target`: the shift target's manifest, empty without one."""

    probe: str
    features: str
    manifest: str
    split: str
    target: str = ""


def fit_probes(
    features_file: Path | str,
    manifest_file: Path | str,
    split_file: Path | str,
    outputs: Mapping[int, Path | str],
    settings: ProbeSettings,
) -> None:
    """Fit one seed's probe at each label fraction of `outputs` (percent: file).

    Features are standardised with the mean and standard deviation of the seed's whole train part,
    which needs no labels; the stored probes take raw features.
    """
    from crsbench.probes.selection import fit_probe

    manifest = read_manifest(manifest_file)
    split = read_split(split_file, manifest)
    matrix = read_features(features_file).rows(manifest.image_ids, features_file)
    mean, scale = standardisation(matrix[split.part == TRAIN])
    for percent, output in outputs.items():
        rows = split.labelled(percent)
        standardised = ((matrix[rows] - mean) / scale).astype(np.float32)
        probe = fit_probe(
            standardised, manifest.truth[rows], manifest.groups[rows], manifest.task, settings
        )
        on_raw_features(probe, mean, scale).save(output)


def standardisation(train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (population) of each column of (n, width), float64.

    A constant column has the scale 1: it is centred and carries nothing.
    """
    mean = train.mean(axis=0, dtype=np.float64)
    scale = train.std(axis=0, dtype=np.float64)
    scale[scale <= 1e-7 * np.maximum(1.0, np.abs(mean))] = 1.0
    return mean, scale


def on_raw_features(probe: FittedProbe, mean: np.ndarray, scale: np.ndarray) -> FittedProbe:
    """The same probe for features that are not standardised."""
    coef = probe.coef_ / scale
    return replace(probe, coef_=coef, intercept_=probe.intercept_ - coef @ mean)


def evaluate_run(run: Run, files: RunFiles, output: Path | str) -> None:
    """Apply a probe to the test features of the run's condition and write the metrics."""
    manifest, split = _split(files.manifest, files.split)
    probe = _probe(files.probe)
    features = _features(files.features)
    if files.target:
        tested = _manifest(files.target)
        rows = _unseen(tested, manifest, split)
    else:
        tested, rows = manifest, split.part == TEST
    probabilities = probe.predict_proba(features.rows(tested.image_ids[rows], files.features))
    metrics = run_metrics(manifest.task, tested.truth[rows], probabilities, manifest.classes)
    write_json(
        output,
        {
            **asdict(run),
            **metrics.to_json(),
            "probe": {
                "c": [None if np.isnan(c) else float(c) for c in probe.c_],
                "converged": bool(np.all(probe.converged_)),
                "capped": probe.capped_,
                "folds": probe.folds_.tolist(),
                "n_train": probe.n_train_,
                "classes_at_floor": [manifest.classes[k] for k in probe.floor_classes_],
                "classes_given_one_group": list(split.floors[run.percent]),
            },
            "weights_sha256": features.metadata["weights_sha256"],
        },
    )


def _unseen(target: Manifest, source: Manifest, split: Split) -> np.ndarray:
    """Mask of the target's images; a group that the source trained or calibrated on is left out."""
    if target.group_namespace != source.group_namespace:
        return np.ones(len(target.image_ids), dtype=bool)
    rows = ~np.isin(target.groups, source.groups[split.part != TEST])
    if not rows.any():
        raise UserError(
            f"Every image of the shift target '{target.dataset}' belongs to a group that "
            f"'{source.dataset}' trains on; nothing is left to test."
        )
    return rows


@lru_cache(CACHED_FILES)
def _manifest(path: str) -> Manifest:
    return read_manifest(path)


@lru_cache(CACHED_FILES)
def _split(manifest: str, split: str) -> tuple[Manifest, Split]:
    return _manifest(manifest), read_split(split, _manifest(manifest))


@lru_cache(CACHED_FILES)
def _features(path: str) -> Features:
    return read_features(path)


@lru_cache(CACHED_PROBES)
def _probe(path: str) -> FittedProbe:
    return FittedProbe.load(path)


def collect_runs(files: Sequence[Path | str]) -> pd.DataFrame:
    """The `runs` table, a row a run file, in the order of its keys.

    `c` is the geometric mean over labels where each label has its own; it is missing where nothing
    was fitted.
    """
    rows = []
    for file in files:
        content = read_json(file)
        probe = content["probe"]
        chosen = [c for c in probe["c"] if c is not None]
        content["c"] = float(np.exp(np.mean(np.log(chosen)))) if chosen else None
        content |= {name: probe[name] for name in ("converged", "capped")}
        rows.append([content[name] for name in RUN_COLUMNS])
    frame = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
    keys = ["encoder", "dataset", "seed", "condition", "percent"]
    frame["macro_auroc"] = frame["macro_auroc"].astype(float)
    return frame.sort_values(keys, ignore_index=True)
