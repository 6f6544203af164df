"""Probes and runs: from features to fitted probes, from probes to the metrics of a run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pandas as pd

from crsbench.config.grid import Run
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.core.names import CLEAN
from crsbench.core.threads import use_one_thread
from crsbench.data.manifest import Manifest, read_contents, read_manifest
from crsbench.data.splits import CALIBRATION, TEST, TRAIN, Split, read_split
from crsbench.evaluation.cases import TestedCases
from crsbench.features.store import Features, check_made_by, read_features
from crsbench.metrics.run_metrics import RunMetrics
from crsbench.probes import FittedProbe, ProbeSettings
from crsbench.probes.fitted import Decisions

CACHED_FILES = 32
"""How many manifests and splits a process keeps in memory: several data sets and seeds."""

CACHED_FEATURES = 256 * 2**20
"""How many bytes of feature files a process keeps mapped; what is larger is mapped anew."""

ROWS_AT_ONCE = 4096
"""How many rows of features a process copies to predict them."""

CACHED_PROBES = 256
"""How many probes a process keeps; the published panel's largest take 130 kB each."""

RUN_COLUMNS = (
    *("encoder", "dataset", "seed", "condition", "percent", "n_test"),
    *("macro_auroc", "ece", "ece_if_calibrated", "classwise_ece", "adaptive_ece", "brier"),
    *("log_loss", "n_classes", "n_classes_defined", "c", "converged", "capped"),
)

CONFIDENCE_COLUMNS = (
    *("encoder", "dataset", "condition"),
    *("bin", "count", "confidence", "accuracy"),
)

PARTIAL_COLUMNS = ("macro_auroc_core", "source_macro_auroc", "target_macro_auroc")
"""What only some runs have: those of a data set with excluded classes, those on a shift target."""


@dataclass(frozen=True)
class RunFiles:
    """The files that a run reads.

    On a shift target also `target`, its manifest, and `clean`, the file of the same probe's run on
    the clean test set; both are empty otherwise. made_by: what the features must have been made by,
    see `crsbench.features.store.check_made_by`.
    """

    probe: str
    features: str
    manifest: str
    split: str
    target: str = ""
    clean: str = ""
    made_by: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CellFiles:
    """The files that the runs of one encoder × data set read.

    splits, probes: seed: file; features: condition: file; targets: shift target: its manifest.
    Where probes are fitted on the way there are no files of them. made_by: condition: as in
    `RunFiles`.
    """

    manifest: str
    splits: Mapping[int, str]
    features: Mapping[str, str]
    targets: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[int, str] = field(default_factory=dict)
    made_by: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, seed: int, condition: str) -> RunFiles:
        return RunFiles(
            self.probes.get(seed, ""),
            self.features[condition],
            self.manifest,
            self.splits[seed],
            self.targets.get(condition, ""),
            made_by=self.made_by.get(condition),
        )

    @property
    def all(self) -> list[str]:
        parts = (self.splits, self.features, self.targets, self.probes)
        return [self.manifest, *(file for part in parts for file in part.values())]


def fit_probes(
    features_file: Path | str,
    manifest_file: Path | str,
    split_file: Path | str,
    outputs: Mapping[int, Path | str],
    settings: ProbeSettings,
    made_by: Mapping[str, Any] | None = None,
) -> None:
    """Fit one seed's probe at each label fraction of `outputs` (percent: file).

    Features are standardised with the mean and standard deviation of the seed's whole train part,
    which needs no labels; the stored probes take raw features. made_by: what the features must have
    been made by (`check_made_by`).
    """
    from crsbench.probes.selection import fit_probe

    manifest = read_manifest(manifest_file)
    split = read_split(split_file, manifest)
    features = read_features(features_file, made_by)
    matrix = features.rows(manifest.image_ids, features_file)
    mean, scale = standardisation(matrix[split.part == TRAIN])
    for percent, output in outputs.items():
        rows = split.labelled(percent)
        standardised = ((matrix[rows] - mean) / scale).astype(np.float32)
        probe = fit_probe(
            standardised, manifest.truth[rows], manifest.groups[rows], manifest.task, settings
        )
        on_raw_features(probe, mean, scale).save(output)


def fit_probes_of(
    features_file: str,
    manifest_file: str,
    split_file: str,
    percents: Sequence[int],
    outputs: Sequence[str],
    settings: Mapping[str, Any],
    made_by: Mapping[str, Any],
) -> None:
    """`fit_probes` for a process of its own: `settings` is the config's section `probe`."""
    import crsbench.probes.selection  # noqa: F401  # here: torch, before its threads are bound

    use_one_thread()
    whole = ProbeSettings(**{**settings, "c_grid": tuple(settings["c_grid"])})
    files = dict(zip(percents, outputs, strict=True))
    fit_probes(features_file, manifest_file, split_file, files, whole, made_by)


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


class Probe(Protocol):
    """Anything that is fitted and predicts, from features (m, d) as stored.

    `predict` gives probabilities (m, K) and what AUROCs rank by (m, K).
    """

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


def predict_run(files: RunFiles, part: str = TEST) -> TestedCases:
    """Apply the logistic probe of `files.probe` to the features of a run's condition.

    part: as in `predict_with`.
    """
    return predict_with(_probe(files.probe), files, part)


def predict_with(probe: Probe, files: RunFiles, part: str = TEST) -> TestedCases:
    """Apply a probe to the features of a run's condition; `files.probe` is not read.

    part: what of the probe's own data set is predicted, the test or the calibration set; of a shift
    target it is every image that the probe has not seen.
    """
    manifest, tested, rows = _tested_rows(files, part)
    blocks = [probe.predict(block) for block in _feature_blocks(files, tested.image_ids[rows])]
    given, scores = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return TestedCases.of(manifest.task, manifest.classes, tested, rows, given, scores)


def decide_run(files: RunFiles, part: str = TEST) -> tuple[np.ndarray, Decisions]:
    """The image ids (n,) of a run, and what the logistic probe of `files.probe` decides of them.

    `predict_run` gives the probabilities and log-odds of these logits.
    """
    _, tested, rows = _tested_rows(files, part)
    probe, image_ids = _probe(files.probe), tested.image_ids[rows]
    blocks = [probe.decide(block) for block in _feature_blocks(files, image_ids)]
    return image_ids, replace(blocks[0], logits=np.concatenate([one.logits for one in blocks]))


def _tested_rows(files: RunFiles, part: str) -> tuple[Manifest, Manifest, np.ndarray]:
    """The probe's manifest, that of the tested images, and which of its rows are tested (mask)."""
    manifest, split = _split(files.manifest, files.split)
    if files.target:
        return manifest, _manifest(files.target), unseen(files.target, files.manifest, files.split)
    return manifest, manifest, split.part == part


def _feature_blocks(files: RunFiles, image_ids: np.ndarray) -> Iterator[np.ndarray]:
    """Features of the images, a bounded number of rows at a time: several threads do it at once."""
    features = _features(files.features)
    check_made_by(files.features, features.metadata, files.made_by)
    at = features.positions(image_ids, files.features)
    for start in range(0, len(at), ROWS_AT_ONCE):
        yield features.take(at[start : start + ROWS_AT_ONCE])


def evaluate_run(
    run: Run, files: RunFiles, output: Path | str, excluded_classes: Sequence[str] = ()
) -> None:
    """Write the metrics of the logistic probe `files.probe` under the run's condition.

    excluded_classes: as in `evaluate_with`.
    """
    manifest, split = _split(files.manifest, files.split)
    probe = _probe(files.probe)
    clean = read_json(files.clean) if files.target else None
    content = evaluate_with(probe, run, files, clean, excluded_classes)
    content["probe"] = {
        "c": [None if np.isnan(c) else float(c) for c in probe.c_],
        "converged": bool(np.all(probe.converged_)),
        "capped": probe.capped_,
        "folds": probe.folds_.tolist(),
        "n_train": probe.n_train_,
        "classes_at_floor": [manifest.classes[k] for k in probe.floor_classes_],
        "classes_given_one_group": list(split.floors[run.percent]),
    }
    write_json(output, content)


def evaluate_with(
    probe: Probe,
    run: Run,
    files: RunFiles,
    clean: Mapping[str, Any] | None = None,
    excluded_classes: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of a run's file but for its `probe`: the run, its metrics, the weights' digest.

    A shift target is judged on the classes that it shares with the probe's data set, which the
    content names. A multi-class probe ranks their images by the log-odds among all its classes; its
    calibration is that of the probabilities given that one of the shared classes is true. Beside
    them stand `target_macro_auroc` and `source_macro_auroc`, both over exactly those classes that
    are shared and whose AUROC is defined here and on the source's clean test set; their difference
    is the shift's drop.

    files: `probe` and `clean` are not read. clean: on a shift target, the content of the same
    probe's clean run. excluded_classes: classes that `macro_auroc_core` leaves out.
    """
    metrics = predict_with(probe, files).metrics(excluded_classes)
    content = {**asdict(run), **metrics.to_json()}
    if files.target:
        if clean is None:
            raise ValueError(f"{run} is on a shift target and needs its clean run.")
        content |= _beside_source(run, metrics, clean)
    made_by = _features(files.features).metadata
    content |= {"weights_sha256": made_by["weights_sha256"]}
    base_model = made_by.get("base_model")
    return content if base_model is None else content | {"base_model": base_model}


def _beside_source(run: Run, metrics: RunMetrics, clean: Mapping[str, Any]) -> dict[str, Any]:
    """The shared classes, and the macro-AUROC of both sides over those defined on both."""
    found = {key: clean.get(key) for key in asdict(run)}
    if found != asdict(replace(run, condition=CLEAN)):
        raise ValueError(f"{found} is not the clean run beside {run}")
    both = [
        name
        for name, auroc in metrics.auroc.items()
        if auroc is not None and clean["auroc"][name] is not None
    ]
    sides = {"source_macro_auroc": clean["auroc"], "target_macro_auroc": metrics.auroc}
    return {
        "shared_classes": list(metrics.auroc),
        **{
            name: float(np.mean([auroc[name] for name in both])) if both else None
            for name, auroc in sides.items()
        },
    }


@lru_cache(CACHED_FILES)
def unseen(target_file: str, source_file: str, split_file: str) -> np.ndarray:
    """Mask of the target's images without those that the source's probes have seen.

    Left out are images whose file is, byte by byte, one that the source trained or calibrated on,
    and, where the groups of both are comparable, images of a group that it did so on.
    """
    target, (source, split) = _manifest(target_file), _split(source_file, split_file)
    fitted = np.isin(split.part, [TRAIN, CALIBRATION])
    contents = read_contents(target_file)
    seen = (contents != b"") & np.isin(contents, read_contents(source_file)[fitted])
    if target.group_namespace == source.group_namespace:
        seen |= np.isin(target.groups, source.groups[fitted])
    if seen.all():
        raise UserError(
            f"'{source.dataset}' trains on every image of its shift target '{target.dataset}', or "
            "on its group; nothing is left to test."
        )
    return ~seen


@lru_cache(CACHED_FILES)
def _manifest(path: str) -> Manifest:
    return read_manifest(path)


@lru_cache(CACHED_FILES)
def _split(manifest: str, split: str) -> tuple[Manifest, Split]:
    return _manifest(manifest), read_split(split, _manifest(manifest))


class _MappedFeatures:
    """Feature files that were read of late, up to a number of bytes, the oldest dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._lock = Lock()

    def __call__(self, path: str) -> Features:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        features = read_features(path)
        with self._lock:
            self._kept[path] = features
            while sum(kept.n_bytes for kept in self._kept.values()) > self._most:
                self._kept.popitem(last=False)
        return features


_features = _MappedFeatures(CACHED_FEATURES)


@lru_cache(CACHED_PROBES)
def _probe(path: str) -> FittedProbe:
    return FittedProbe.load(path)


def collect_runs(files: Sequence[Path | str]) -> pd.DataFrame:
    """The `runs` table, a row a run file, in the order of its keys."""
    return runs_frame(map(read_json, files))


def runs_frame(contents: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The contents of run files as a table, in the order of its keys.

    What only some runs have (`PARTIAL_COLUMNS`) is missing in the others. `c` is the geometric mean
    over labels where each label has its own; it is missing where nothing was fitted.
    """
    rows = []
    for content in contents:
        probe = content["probe"]
        chosen = [c for c in probe["c"] if c is not None]
        of_probe = {"c": float(np.exp(np.mean(np.log(chosen)))) if chosen else None}
        of_probe |= {name: probe[name] for name in ("converged", "capped")}
        row = {**content, **of_probe}
        present = [row[name] for name in RUN_COLUMNS]
        rows.append(present + [row.get(name) for name in PARTIAL_COLUMNS])
    frame = pd.DataFrame(rows, columns=[*RUN_COLUMNS, *PARTIAL_COLUMNS])
    keys = ["encoder", "dataset", "seed", "condition", "percent"]
    for name in ("macro_auroc", "c", *PARTIAL_COLUMNS):
        frame[name] = frame[name].astype(float)
    return frame.sort_values(keys, ignore_index=True)


def collect_confidence_bins(files: Sequence[Path | str]) -> pd.DataFrame:
    """The `confidence_bins` table: bins of the full-label runs, pooled over seeds and labels.

    A row is encoder × data set × condition × bin. `count` sums test cases over the seeds and, where
    each label has bins of its own, over the labels; `confidence` and `accuracy` are the pooled mean
    stated probability and frequency, missing in an empty bin.

    files: of all runs; those of other label fractions are left alone.
    """
    pooled: dict[tuple[str, str, str], np.ndarray] = {}
    for file in sorted(map(str, files)):
        if Path(file).stem != "frac100":
            continue
        content = read_json(file)
        cell = content["encoder"], content["dataset"], content["condition"]
        for bins in content["reliability"].values():
            count = np.array(bins["count"], dtype=np.float64)
            means = np.array([bins["mean_confidence"], bins["accuracy"]], dtype=np.float64)
            sums = np.vstack([count, np.where(count > 0, means, 0.0) * count])
            pooled[cell] = pooled.get(cell, 0.0) + sums
    rows = [
        (*cell, place, int(count), confidence / count, accuracy / count)
        if count
        else (*cell, place, 0, np.nan, np.nan)
        for cell, sums in sorted(pooled.items())
        for place, (count, confidence, accuracy) in enumerate(sums.T)
    ]
    return pd.DataFrame(rows, columns=list(CONFIDENCE_COLUMNS))
