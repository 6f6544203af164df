"""From features to probes to runs: what scikit-learn gives, on the images that may be seen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import read_split, write_split, write_test
from crsbench.errors import UserError
from crsbench.features.store import FeatureWriter
from crsbench.files import read_json, write_table
from crsbench.grid import Run
from crsbench.probes import FittedProbe, ProbeSettings
from crsbench.runs import (
    RunFiles,
    collect_runs,
    evaluate_run,
    fit_probes,
    on_raw_features,
    standardisation,
)

FRACTIONS = [1, 10, 100]
SETTINGS = ProbeSettings(c_grid=(0.01, 1.0), tolerance=1e-10, max_iterations=2000)


@dataclass
class World:
    """A data set of 400 images with four features a class, written as the workflow writes it."""

    folder: Path
    task: str
    matrix: np.ndarray

    @property
    def manifest_file(self) -> Path:
        return self.folder / "manifest.parquet"

    @property
    def split_file(self) -> Path:
        return self.folder / "split.parquet"

    def features(self, name: str, matrix: np.ndarray, rows: np.ndarray | None = None) -> Path:
        path = self.folder / f"{name}.arrow"
        ids = self.manifest.image_ids
        with FeatureWriter(path, {"weights_sha256": "f" * 64}) as writer:
            for index in np.arange(len(ids)) if rows is None else np.flatnonzero(rows):
                writer.append(ids[index], matrix[index].astype(np.float32))
        return path

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.manifest_file)


def write_world(folder: Path, task: str, namespace: str = "d", n: int = 400) -> World:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    if task == "multiclass":
        truth = np.eye(3, dtype=np.int8)[random.choice(3, n, p=[0.6, 0.3, 0.1])]
    else:
        truth = (random.random((n, 3)) < [0.5, 0.3, 0.1]).astype(np.int8)
    matrix = 7 + 3 * random.normal(size=(n, 12))
    matrix[:, :3] += 2.5 * truth
    matrix[:, 11] = 4.0  # a constant feature
    ids = [f"i{index:04d}" for index in range(n)]
    frame = pd.DataFrame({"image_id": ids, "path": ids, "group": [f"p{i // 2}" for i in range(n)]})
    frame["labels"] = list(truth)
    frame["content_sha256"] = ids
    metadata = {
        "dataset": "d",
        "task": task,
        "classes": ["a", "b", "c"],
        "group_namespace": namespace,
    }
    write_table(folder / "manifest.parquet", frame, metadata)
    write_test(folder / "test.parquet", folder / "manifest.parquet", 0.2)
    files = folder / "manifest.parquet", folder / "test.parquet"
    write_split(folder / "split.parquet", *files, 0, FRACTIONS, 0.125)
    return World(folder, task, matrix)


@pytest.fixture(params=["multiclass", "multilabel"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return write_world(tmp_path, request.param)


def fitted(world: World, features: Path) -> dict[int, Path]:
    outputs = {percent: world.folder / f"frac{percent:03d}.npz" for percent in FRACTIONS}
    fit_probes(features, world.manifest_file, world.split_file, outputs, SETTINGS)
    return outputs


def test_a_run_is_what_scikit_learn_gives_at_the_chosen_c(world: World) -> None:
    features = world.features("clean", world.matrix)
    probe_file = fitted(world, features)[100]
    output = world.folder / "run.json"
    files = RunFiles(
        str(probe_file), str(features), str(world.manifest_file), str(world.split_file)
    )
    evaluate_run(Run("e", "d", 0, "clean", 100), files, output)
    found = read_json(output)

    manifest, split = world.manifest, read_split(world.split_file, world.manifest)
    train, test = split.labelled(100), split.part == "test"
    matrix = world.matrix.astype(np.float32).astype(float)
    scaler = StandardScaler().fit(matrix[split.part == "train"])
    x_train, x_test = scaler.transform(matrix[train]), scaler.transform(matrix[test])
    truth = manifest.truth
    if world.task == "multiclass":
        model = LogisticRegression(C=found["probe"]["c"][0], tol=1e-8, max_iter=5000)
        probabilities = model.fit(x_train, truth[train].argmax(1)).predict_proba(x_test)
    else:
        probabilities = np.stack(
            [
                LogisticRegression(C=found["probe"]["c"][k], tol=1e-8, max_iter=5000)
                .fit(x_train, truth[train, k])
                .predict_proba(x_test)[:, 1]
                for k in range(3)
            ],
            axis=1,
        )
    ours = FittedProbe.load(probe_file).predict_proba(world.matrix[test].astype(np.float32))
    assert ours == pytest.approx(probabilities, abs=2e-4)
    wanted = np.mean([roc_auc_score(truth[test, k], ours[:, k]) for k in range(3)])
    assert found["macro_auroc"] == pytest.approx(wanted, abs=1e-12)
    assert found["n_test"] == test.sum()
    assert found["probe"]["converged"]
    assert found["weights_sha256"] == "f" * 64


def test_a_fraction_sees_its_own_labels_only(world: World) -> None:
    """Labels outside the 10 % may be anything: the probe at 10 % keeps its bytes."""
    features = world.features("clean", world.matrix)
    before = fitted(world, features)[10].read_bytes()
    split = read_split(world.split_file, world.manifest)
    frame = pd.read_parquet(world.manifest_file)
    inside = split.labelled(10)
    labels = np.stack(frame["labels"].to_list())
    labels[~inside] = np.roll(labels[~inside], 1, axis=1)
    frame["labels"] = list(labels)
    metadata = {
        "dataset": "d",
        "task": world.task,
        "classes": ["a", "b", "c"],
        "group_namespace": "d",
    }
    write_table(world.manifest_file, frame, metadata)
    assert fitted(world, features)[10].read_bytes() == before


def test_no_probe_depends_on_test_or_calibration_features(world: World) -> None:
    before = {
        p: f.read_bytes() for p, f in fitted(world, world.features("a", world.matrix)).items()
    }
    split = read_split(world.split_file, world.manifest)
    changed = world.matrix.copy()
    changed[split.part != "train"] += 100
    after = fitted(world, world.features("b", changed))
    assert {p: f.read_bytes() for p, f in after.items()} == before


def test_fitting_again_gives_the_same_bytes(world: World) -> None:
    features = world.features("clean", world.matrix)
    before = [file.read_bytes() for file in fitted(world, features).values()]
    assert [file.read_bytes() for file in fitted(world, features).values()] == before


def test_a_class_absent_from_the_subset_is_predicted_at_its_floor_and_named(tmp_path: Path) -> None:
    world = write_world(tmp_path, "multiclass")
    split = read_split(world.split_file, world.manifest)
    frame = pd.read_parquet(world.manifest_file)
    labels = np.stack(frame["labels"].to_list())
    train_c = (labels[:, 2] == 1) & (split.part == "train")
    labels[train_c] = [1, 0, 0]  # no member of class c is left to train on
    frame["labels"] = list(labels)
    metadata = {
        "dataset": "d",
        "task": "multiclass",
        "classes": ["a", "b", "c"],
        "group_namespace": "d",
    }
    write_table(world.manifest_file, frame, metadata)
    features = world.features("clean", world.matrix)
    probe_file = fitted(world, features)[100]
    files = RunFiles(
        str(probe_file), str(features), str(world.manifest_file), str(world.split_file)
    )
    evaluate_run(Run("e", "d", 0, "clean", 100), files, world.folder / "run.json")
    found = read_json(world.folder / "run.json")
    assert found["probe"]["classes_at_floor"] == ["c"]
    assert found["auroc"]["c"] == 0.5  # a constant ranks nobody
    probabilities = FittedProbe.load(probe_file).predict_proba(world.matrix.astype(np.float32))
    assert probabilities[:, 2] == pytest.approx(1 / (split.labelled(100).sum() + 3))
    assert probabilities.sum(axis=1) == pytest.approx(1)


def test_a_shift_target_of_other_patients_is_tested_whole(world: World) -> None:
    target = write_world(world.folder / "target", world.task, namespace="elsewhere")
    features = world.features("clean", world.matrix)
    probe = fitted(world, features)[100]
    foreign = target.features("mimic", target.matrix)
    files = map(str, (probe, foreign, world.manifest_file, world.split_file, target.manifest_file))
    evaluate_run(Run("e", "d", 0, "mimic", 100), RunFiles(*files), world.folder / "run.json")
    assert read_json(world.folder / "run.json")["n_test"] == 400


def test_a_shift_target_leaves_out_the_patients_that_were_trained_on(world: World) -> None:
    target = write_world(world.folder / "target", world.task)  # same table: same patients
    features = world.features("clean", world.matrix)
    probe = fitted(world, features)[100]
    foreign = target.features("mimic", target.matrix)
    files = map(str, (probe, foreign, world.manifest_file, world.split_file, target.manifest_file))
    evaluate_run(Run("e", "d", 0, "mimic", 100), RunFiles(*files), world.folder / "run.json")
    n_test = (read_split(world.split_file, world.manifest).part == "test").sum()
    assert read_json(world.folder / "run.json")["n_test"] == n_test


def test_degraded_features_of_other_images_are_told(world: World) -> None:
    features = world.features("clean", world.matrix)
    probe = fitted(world, features)[100]
    split = read_split(world.split_file, world.manifest)
    wrong = world.features("jpeg-1", world.matrix, rows=split.part == "train")
    files = map(str, (probe, wrong, world.manifest_file, world.split_file))
    with pytest.raises(UserError, match=r"jpeg-1\.arrow lacks the image"):
        evaluate_run(Run("e", "d", 0, "jpeg-1", 100), RunFiles(*files), world.folder / "run.json")
    assert not (world.folder / "run.json").exists()


def test_standardisation_folds_into_the_probe() -> None:
    random = np.random.default_rng(0)
    train = random.normal(5, 3, (200, 6)).astype(np.float32)
    train[:, 5] = 2.0
    mean, scale = standardisation(train)
    reference = StandardScaler().fit(train.astype(float))
    assert mean == pytest.approx(reference.mean_)
    assert scale == pytest.approx(reference.scale_)

    from crsbench.probes.selection import fit_probe

    truth = np.eye(2, dtype=np.int8)[(train[:, 0] > 5).astype(int)]
    probe = fit_probe(
        ((train - mean) / scale).astype(np.float32), truth, np.arange(200), "multiclass", SETTINGS
    )
    other = random.normal(5, 3, (50, 6))
    other[:, 5] = 2.0
    folded = on_raw_features(probe, mean, scale).predict_proba(other)
    assert folded == pytest.approx(probe.predict_proba((other - mean) / scale), abs=1e-9)


def test_run_files_are_strict_json_and_collect_in_the_order_of_their_keys(world: World) -> None:
    features = world.features("clean", world.matrix)
    probes = fitted(world, features)
    outputs = []
    for percent in (100, 1, 10):
        files = map(str, (probes[percent], features, world.manifest_file, world.split_file))
        outputs.append(world.folder / f"run{percent}.json")
        evaluate_run(Run("e", "d", 0, "clean", percent), RunFiles(*files), outputs[-1])
    for output in outputs:
        json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(name))
    frame = collect_runs(outputs)
    assert frame["percent"].tolist() == [1, 10, 100]
    assert frame.equals(collect_runs(outputs[::-1]))
    assert frame["macro_auroc"].iloc[2] > 0.65


def test_a_damaged_run_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"encoder": "e"')
    with pytest.raises(UserError, match=r"run\.json is no readable JSON file"):
        collect_runs([tmp_path / "run.json"])
