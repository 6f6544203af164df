"""The two jobs of an adaptation: train on a labelled subset, and test what came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from crsbench.adaptation import lora
from crsbench.adaptation.settings import Recipe
from crsbench.adaptation.training import Adapted, Labelled, Progress, train
from crsbench.config.grid import Run
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json, write_table
from crsbench.core.hashing import sha256_number, sha256_of_file
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import TRAIN, hold_out, read_split, read_test
from crsbench.encoders import LoadedEncoder, load_encoder
from crsbench.evaluation.runs import (
    RunFiles,
    collect_runs,
    evaluate_run,
    on_raw_features,
    standardisation,
)
from crsbench.features.jobs import extract_views, job_device, views_of
from crsbench.features.settings import ExtractionSettings, ImageSettings
from crsbench.features.store import read_features
from crsbench.probes import FittedProbe
from crsbench.weights.tensors import sha256_of_tensors

LIBRARIES = ("numpy", "peft", "timm", "torch", "transformers")


@dataclass(frozen=True)
class Training:
    """One training: an encoder on the labelled subset (`percent`) of one seed of a data set."""

    encoder: str
    dataset: str
    seed: int
    percent: int

    def __str__(self) -> str:
        return f"{self.encoder} × {self.dataset}, seed {self.seed}, {self.percent} % of the labels"


@dataclass(frozen=True)
class TrainingFiles:
    """What a training reads, and `weights, config` (of the adapter), `head`, `log` that it writes.

    features: the frozen encoder's clean features, whose mean and scale standardise those of the
    adapted one; made_by: what they must have been made by (`check_made_by`).
    """

    manifest: Path
    split: Path
    features: Path
    weights: Path
    config: Path
    head: Path
    log: Path
    made_by: Mapping[str, Any] | None = None


def adapt(
    settings: ExtractionSettings,
    recipe: Recipe,
    target_modules: str | None,
    training: Training,
    files: TrainingFiles,
    workers: int,
) -> None:
    """Train, and write the adapter (in peft's format), the head (a probe file) and the history.

    settings: of the training's encoder; target_modules: as `lora.add_lora` takes it.
    The state after each epoch lies beside the history until all is written: a job that was killed
    goes on with the epoch that it was in, and on a CPU writes the same bytes. Raises UserError
    naming encoder, data set, seed and fraction where there is nothing to train on or with.
    """
    (entry,) = settings.encoders
    parts = training.encoder, training.dataset, training.seed, training.percent
    with job_device(settings.device) as device:
        encoder = load_encoder(entry, settings.home, settings.weights_root, torch.device("cpu"))
        added = lora.add_lora(
            encoder.encode,
            encoder.name,
            rank=recipe.rank,
            alpha=recipe.alpha,
            targets=target_modules,
            seed=sha256_number("lora", *parts),
        )
        if recipe.checkpoint_activations:
            lora.checkpoint_activations(encoder.encode, encoder.name)
        labelled, mean, scale = _labelled(settings.images, training, files, encoder, recipe)
        model = Adapted(encoder, mean, scale, len(labelled.classes)).to(device)
        before = lora.frozen_digest(model.encode)
        checkpoint = files.log.with_name("checkpoint.safetensors")
        identity = _identity(training, files, recipe, added.target_modules, encoder)
        how = {"checkpoint": checkpoint, "identity": identity, "device": device}
        state = train(model, labelled, recipe, workers=workers, **how)
        if lora.frozen_digest(model.encode) != before:
            raise RuntimeError(f"{training}: the training changed weights that are frozen")
    lora.save_adapter(model.encode, encoder.name, added, files.weights, files.config)
    on_raw_features(_head(model, labelled, recipe), mean, scale).save(files.head)
    history = _log(training, recipe, labelled, model, state, before)
    adapter = files.weights, files.config
    history["adapter_sha256"] = {file.name: sha256_of_file(file) for file in adapter}
    write_json(files.log, history)
    checkpoint.unlink(missing_ok=True)


def _labelled(
    settings: ImageSettings,
    training: Training,
    files: TrainingFiles,
    encoder: LoadedEncoder,
    recipe: Recipe,
) -> tuple[Labelled, np.ndarray, np.ndarray]:
    """The labelled images, and mean and scale (d,) of the frozen features of the train part."""
    manifest = read_manifest(files.manifest)
    split = read_split(files.split, manifest)
    labelled = split.labelled(training.percent)
    key = training.dataset, training.seed, training.percent
    held_out = hold_out(manifest, labelled, recipe.validation, f"adaptation {training.seed}")
    rows = np.flatnonzero(labelled)
    found = Labelled(
        str(training),
        manifest.task,
        manifest.classes,
        views_of(settings, manifest, rows, [encoder], [(CLEAN,)] * len(rows)),
        manifest.truth[rows],
        np.flatnonzero(~held_out[rows]),
        np.flatnonzero(held_out[rows]),
        key,
    )
    n_fitted = int(np.isnan(found.floors).sum())
    if n_fitted < (2 if manifest.task == "multiclass" else 1):
        raise UserError(
            f"{training}: its {len(rows)} labelled images are too few to adapt on ({n_fitted} of "
            f"{len(manifest.classes)} classes can be fitted); leave {training.percent} out of "
            "adaptation.fractions."
        )
    features = read_features(files.features, files.made_by)
    matrix = features.rows(manifest.image_ids, files.features)
    return found, *standardisation(matrix[split.part == TRAIN])


def _identity(
    training: Training,
    files: TrainingFiles,
    recipe: Recipe,
    targets: str,
    encoder: LoadedEncoder,
) -> str:
    """What a checkpoint must have been made by to be gone on from."""
    content = {
        **asdict(training),
        **asdict(recipe),
        "targets": targets,
        "weights": encoder.weights_sha256,
        "files": [sha256_of_file(f) for f in (files.manifest, files.split, files.features)],
        "versions": {name: version(name) for name in LIBRARIES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _head(model: Adapted, labelled: Labelled, recipe: Recipe) -> FittedProbe:
    """The head as a probe on standardised features."""
    n_classes = len(labelled.classes)
    n_problems = 1 if labelled.task == "multiclass" else n_classes
    at_floor = np.flatnonzero(~np.isnan(labelled.floors))
    undefined = np.full(n_problems, np.nan)
    return FittedProbe(
        task=labelled.task,
        coef_=model.head.weight.detach().cpu().numpy().astype(np.float64),
        intercept_=model.head.bias.detach().cpu().numpy().astype(np.float64),
        c_=undefined,
        c_grid_=np.empty(0),
        oof_log_loss_=np.empty((n_problems, 0)),
        folds_=np.zeros(n_problems, dtype=np.int64),
        n_train_=len(labelled.fit),
        n_iter_=np.full(n_problems, recipe.epochs),
        gradient_norm_=undefined,
        objective_=undefined,
        converged_=np.ones(n_problems, dtype=bool),
        capped_=False,
        floor_classes_=at_floor,
        floor_probabilities_=labelled.floors[at_floor],
    )


def _log(
    training: Training,
    recipe: Recipe,
    labelled: Labelled,
    model: Adapted,
    state: Progress,
    digest: str,
) -> dict[str, Any]:
    trained = model.trained()
    updates = [name for name in trained if name.startswith("encode.")]
    return {
        **asdict(training),
        "recipe": asdict(recipe),
        "n_fit": len(labelled.fit),
        "n_validation": len(labelled.validation),
        "classes_at_floor": [
            labelled.classes[k] for k in np.flatnonzero(~np.isnan(labelled.floors))
        ],
        "best_epoch": state.best_epoch,
        "history": state.history,
        "smallest_micro_batch": state.micro_batch,
        "trained_parameters": sum(p.numel() for p in trained.values()),
        "adapted_projections": sum(".lora_A." in name for name in updates),
        "frozen_sha256": digest,
        "versions": {name: version(name) for name in LIBRARIES},
    }


@dataclass(frozen=True)
class EvaluationFiles:
    """What the test of a training reads.

    adapter: its folder; log: its history; targets: by shift target its manifest.
    """

    manifest: Path
    test: Path
    split: Path
    adapter: Path
    head: Path
    log: Path
    targets: Mapping[str, Path]


def _check_adapter(files: EvaluationFiles) -> None:
    """Peft's formats have no checksums; those of its files stand in the history."""
    for name, digest in read_json(files.log)["adapter_sha256"].items():
        file = files.adapter / name
        if sha256_of_file(file) != digest:
            raise UserError(f"{file} is not as the training wrote it; delete it and rerun.")


def evaluate_adapted(
    settings: ExtractionSettings,
    training: Training,
    files: EvaluationFiles,
    conditions: Sequence[str],
    excluded_classes: Sequence[str],
    output: Path,
    workers: int,
) -> None:
    """Predict the test set under each condition with the adapter merged, and write the runs' table.

    settings: of the training's encoder; conditions: clean first. The features are made and dropped;
    the metrics are those of any run.
    """
    _check_adapter(files)
    targets = {name: files.targets[name] for name in conditions if name in files.targets}
    own = [name for name in conditions if name not in targets]
    with (
        TemporaryDirectory(dir=output.parent, prefix=".features-") as scratch,
        job_device(settings.device) as device,
    ):
        (entry,) = settings.encoders
        encoder = load_encoder(entry, settings.home, settings.weights_root, device)
        merged = lora.load_merged(encoder.encode, encoder.name, files.adapter)
        digest = sha256_of_tensors(merged.state_dict())
        adapted = replace(encoder, encode=merged, weights_sha256=digest, base_model=None)
        features = {name: Path(scratch) / f"{name}.arrow" for name in conditions}
        is_test = read_test(files.test, read_manifest(files.manifest))
        seen = [tuple(own) if tested else () for tested in is_test]
        how = {"device": device, "workers": workers}
        made = {encoder.name: {name: features[name] for name in own}}
        extract_views(settings, [adapted], files.manifest, seen, made, **how)
        for name, manifest in targets.items():
            everyone = [(CLEAN,)] * len(read_manifest(manifest).image_ids)
            made = {encoder.name: {CLEAN: features[name]}}
            extract_views(settings, [adapted], manifest, everyone, made, **how)
        results = []
        for name in conditions:
            run = Run(training.encoder, training.dataset, training.seed, name, training.percent)
            beside = (str(targets[name]), str(results[0])) if name in targets else ()
            read = RunFiles(
                str(files.head), str(features[name]), str(files.manifest), str(files.split), *beside
            )
            results.append(Path(scratch) / f"{name}.json")
            evaluate_run(run, read, results[-1], excluded_classes)
        write_table(output, collect_runs(results))
