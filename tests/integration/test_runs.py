"""From features to probes to runs: what scikit-learn gives, on the images that may be seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import StandardScaler

from crsbench.config.grid import Run
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, read_table, write_json, write_table
from crsbench.data.splits import read_split
from crsbench.evaluation.predictions import keep_predictions, read_predictions
from crsbench.evaluation.runs import (
    PARTIAL_COLUMNS,
    CellFiles,
    RunFiles,
    collect_runs,
    evaluate_run,
    on_raw_features,
    standardisation,
)
from crsbench.metrics.calibration_error import expected_calibration_error
from crsbench.probes import FittedProbe
from worlds.runs import SETTINGS, World, fitted, relabelled, write_world


@pytest.fixture(params=["multiclass", "multilabel"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return write_world(tmp_path, request.param)


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


# --- unknown labels -----------------------------------------------------------------------------


def test_unknown_labels_are_left_out_of_fit_and_metrics(tmp_path: Path) -> None:
    """From the manifest to the run: each label is scikit-learn's on its known images."""
    world = write_world(tmp_path, "multilabel")
    truth = world.manifest.truth.copy()
    truth[np.random.default_rng(8).random(truth.shape) < [0.0, 0.3, 0.1]] = -1
    relabelled(world, truth)
    features = world.features("clean", world.matrix)
    files = fitted(world, features)[100], features, world.manifest_file, world.split_file
    evaluate_run(Run("e", "d", 0, "clean", 100), RunFiles(*map(str, files)), tmp_path / "run.json")
    found = read_json(tmp_path / "run.json")
    split = read_split(world.split_file, world.manifest)
    train, test = split.labelled(100), split.part == "test"
    scaler = StandardScaler().fit(world.matrix[split.part == "train"])
    aurocs, losses = [], []
    for k, c in enumerate(found["probe"]["c"]):
        rows, asked = train & (truth[:, k] >= 0), test & (truth[:, k] >= 0)
        model = LogisticRegression(C=c, tol=1e-8, max_iter=5000)
        model.fit(scaler.transform(world.matrix[rows]), truth[rows, k])
        predicted = model.predict_proba(scaler.transform(world.matrix[asked]))[:, 1]
        aurocs.append(roc_auc_score(truth[asked, k], predicted))
        losses.append(log_loss(truth[asked, k], predicted))
    assert found["macro_auroc"] == pytest.approx(np.mean(aurocs), abs=1e-4)
    assert found["log_loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert found["n_test"] == test.sum()


# --- shift targets ------------------------------------------------------------------------------


@dataclass
class Shifted:
    """The clean run of a world and the run of the same probe on a shift target."""

    clean: dict[str, Any]
    elsewhere: dict[str, Any]
    probabilities: np.ndarray
    """What the probe says of the target's images, by the source's classes."""


def shifted(world: World, target: World, excluded_classes: Sequence[str] = ()) -> Shifted:
    features = world.features("clean", world.matrix)
    probe = fitted(world, features)[100]
    external = target.features("mimic", target.matrix)
    clean, elsewhere = world.folder / "clean.json", world.folder / "elsewhere.json"
    of_source = str(world.manifest_file), str(world.split_file)
    files = RunFiles(str(probe), str(features), *of_source)
    evaluate_run(Run("e", "d", 0, "clean", 100), files, clean, excluded_classes)
    more = str(target.manifest_file), str(clean)
    files = RunFiles(str(probe), str(external), *of_source, *more)
    evaluate_run(Run("e", "d", 0, "mimic", 100), files, elsewhere, excluded_classes)
    matrix = target.matrix.astype(np.float32)
    return Shifted(
        read_json(clean), read_json(elsewhere), FittedProbe.load(probe).predict_proba(matrix)
    )


def test_a_shift_target_of_other_patients_is_tested_whole(world: World) -> None:
    found = shifted(world, write_world(world.folder / "target", world.task, "elsewhere"))
    assert found.elsewhere["n_test"] == 400


def test_a_shift_target_leaves_out_the_patients_that_were_trained_on(world: World) -> None:
    # The same table, so the same patients, though no file is the same.
    target = write_world(world.folder / "target", world.task, contents="recompressed")
    n_test = (read_split(world.split_file, world.manifest).part == "test").sum()
    assert shifted(world, target).elsewhere["n_test"] == n_test


def test_a_shift_target_leaves_out_the_files_that_were_trained_on(world: World) -> None:
    # Another table, so nothing is known of the patients, but the files are the same.
    target = write_world(world.folder / "target", world.task, "elsewhere", contents="d")
    split = read_split(world.split_file, world.manifest)
    frame, metadata = read_table(target.manifest_file)
    frame.loc[split.part == "calibration", "content_sha256"] = "other files"
    write_table(target.manifest_file, frame, metadata)
    wanted = np.isin(split.part, ["test", "calibration"]).sum()
    assert shifted(world, target).elsewhere["n_test"] == wanted


def test_a_shift_target_that_was_trained_on_whole_is_reported(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere")
    split = read_split(world.split_file, world.manifest)
    frame, metadata = read_table(target.manifest_file)
    seen = world.manifest.image_ids[split.part == "train"][0]
    frame["content_sha256"] = f"d {seen}"
    write_table(target.manifest_file, frame, metadata)
    with pytest.raises(UserError, match="'d' trains on every image of its shift target 'd'"):
        shifted(world, target)


def test_a_shift_target_with_all_classes_drops_from_the_clean_run(world: World) -> None:
    found = shifted(world, write_world(world.folder / "target", world.task, "elsewhere"))
    assert found.elsewhere["shared_classes"] == ["a", "b", "c"]
    assert found.elsewhere["source_macro_auroc"] == found.clean["macro_auroc"]
    assert found.elsewhere["target_macro_auroc"] == found.elsewhere["macro_auroc"]


def test_the_order_of_a_targets_classes_is_of_no_effect(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere")
    before = shifted(world, target).elsewhere
    frame, metadata = read_table(target.manifest_file)
    frame["labels"] = [labels[[2, 0, 1]] for labels in frame["labels"]]
    other = world.folder / "other"
    other.mkdir()
    write_table(other / "manifest.parquet", frame, {**metadata, "classes": ["c", "a", "b"]})
    assert shifted(world, World(other, world.task, target.matrix)).elsewhere == before


def test_a_target_is_ranked_on_the_labels_it_shares(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere", classes="ca")
    found = shifted(world, target)
    truth = target.manifest.truth
    c, a = (roc_auc_score(truth[:, k], found.probabilities[:, j]) for k, j in ((0, 2), (1, 0)))
    assert found.elsewhere["shared_classes"] == ["a", "c"]
    assert found.elsewhere["auroc"] == pytest.approx({"a": a, "c": c}, abs=1e-12)
    assert found.elsewhere["macro_auroc"] == pytest.approx((a + c) / 2, abs=1e-12)
    assert found.elsewhere["target_macro_auroc"] == found.elsewhere["macro_auroc"]
    of_source = [found.clean["auroc"][name] for name in ("a", "c")]
    assert found.elsewhere["source_macro_auroc"] == pytest.approx(np.mean(of_source), abs=1e-15)
    assert (found.elsewhere["n_classes"], found.clean["n_classes"]) == (2, 3)


def test_a_multilabel_target_is_calibrated_on_the_labels_it_shares(tmp_path: Path) -> None:
    world = write_world(tmp_path, "multilabel")
    target = write_world(tmp_path / "target", "multilabel", "elsewhere", classes="ca")
    found = shifted(world, target)
    truth, plain = target.manifest.truth[:, ::-1], found.probabilities[:, [0, 2]]
    assert found.elsewhere["brier"] == pytest.approx(np.mean((plain - truth) ** 2), abs=1e-12)
    assert found.elsewhere["log_loss"] == pytest.approx(
        np.mean([log_loss(truth[:, k], plain[:, k]) for k in range(2)]), abs=1e-12
    )


def test_a_multiclass_target_is_calibrated_given_that_a_shared_class_is_true(
    tmp_path: Path,
) -> None:
    world = write_world(tmp_path, "multiclass")
    target = write_world(tmp_path / "target", "multiclass", "elsewhere", classes="ca")
    found = shifted(world, target)
    truth = target.manifest.truth[:, ::-1]
    of_a = found.probabilities[:, 0] / (found.probabilities[:, 0] + found.probabilities[:, 2])
    assert found.elsewhere["brier"] == pytest.approx(2 * np.mean((of_a - truth[:, 0]) ** 2))
    assert found.elsewhere["log_loss"] == pytest.approx(log_loss(truth[:, 0], of_a), abs=1e-12)
    confidence, right = np.maximum(of_a, 1 - of_a), (of_a >= 0.5) == truth[:, 0]
    assert found.elsewhere["ece"] == expected_calibration_error(confidence, right)


def test_both_sides_of_a_drop_leave_out_what_one_side_lacks(world: World) -> None:
    """Class a is without a case elsewhere, class c without one in the clean test set."""
    test = read_split(world.split_file, world.manifest).part == "test"
    truth = world.manifest.truth.copy()
    truth[test & (truth[:, 2] == 1)] = [0, 1, 0]
    relabelled(world, truth)
    target = write_world(world.folder / "target", world.task, "elsewhere")
    truth = target.manifest.truth.copy()
    truth[truth[:, 0] == 1] = [0, 1, 0]
    found = shifted(world, relabelled(target, truth))
    assert found.clean["undefined_classes"] == ["c"]
    assert found.elsewhere["undefined_classes"] == ["a"]
    assert found.elsewhere["source_macro_auroc"] == found.clean["auroc"]["b"]
    assert found.elsewhere["target_macro_auroc"] == found.elsewhere["auroc"]["b"]
    assert found.elsewhere["macro_auroc"] == pytest.approx(
        (found.elsewhere["auroc"]["b"] + found.elsewhere["auroc"]["c"]) / 2, abs=1e-15
    )


def test_without_a_class_on_both_sides_there_is_no_drop(tmp_path: Path) -> None:
    world = write_world(tmp_path, "multilabel")
    target = write_world(tmp_path / "target", "multilabel", "elsewhere", classes="b")
    found = shifted(world, relabelled(target, np.zeros((400, 1))))
    assert found.elsewhere["macro_auroc"] is None
    assert found.elsewhere["source_macro_auroc"] is None
    assert found.elsewhere["target_macro_auroc"] is None


def test_a_drop_from_another_probes_clean_run_is_refused(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere")
    shifted(world, target)
    clean = world.folder / "clean.json"
    write_json(clean, {**read_json(clean), "seed": 1})
    names = (world.folder / "frac100.npz", target.folder / "mimic.arrow", world.manifest_file)
    files = RunFiles(*map(str, (*names, world.split_file, target.manifest_file, clean)))
    with pytest.raises(ValueError, match="is not the clean run beside"):
        evaluate_run(Run("e", "d", 0, "mimic", 100), files, world.folder / "run.json")


def test_excluded_classes_are_left_out_of_the_core(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere", classes="ca")
    found = shifted(world, target, excluded_classes=["b", "c"])
    assert found.clean["macro_auroc_core"] == found.clean["auroc"]["a"]
    assert found.elsewhere["macro_auroc_core"] == found.elsewhere["auroc"]["a"]
    assert shifted(world, target).clean["macro_auroc_core"] is None
    assert shifted(world, target, excluded_classes=["c", "a"]).elsewhere["macro_auroc_core"] is None


# --- standardisation, run files -----------------------------------------------------------------


def test_degraded_features_of_other_images_are_reported(world: World) -> None:
    features = world.features("clean", world.matrix)
    probe = fitted(world, features)[100]
    split = read_split(world.split_file, world.manifest)
    wrong = world.features("jpeg-1", world.matrix, rows=split.part == "train")
    files = map(str, (probe, wrong, world.manifest_file, world.split_file))
    with pytest.raises(UserError, match=r"jpeg-1\.arrow lacks the image"):
        evaluate_run(Run("e", "d", 0, "jpeg-1", 100), RunFiles(*files), world.folder / "run.json")
    assert not (world.folder / "run.json").exists()


def test_kept_predictions_hold_the_calibration_set_first(world: World) -> None:
    features = world.features("clean", world.matrix)
    degraded = world.features("jpeg-1", world.matrix + 1)
    probe = fitted(world, features)[100]
    kept = world.folder / "kept.parquet"
    cell = CellFiles(
        str(world.manifest_file),
        {0: str(world.split_file)},
        {"clean": str(features), "jpeg-1": str(degraded)},
        probes={0: str(probe)},
    )
    keep_predictions(kept, cell, 0)
    for condition in ("clean", "jpeg-1"):  # features that do not say what made them
        wanted = replace(cell, made_by={condition: {"short_side": 224}})
        with pytest.raises(UserError, match=f"{condition}.arrow was made with settings null, the"):
            keep_predictions(world.folder / "none.parquet", wanted, 0)
    assert read_table(kept)[0]["condition"].unique().tolist() == ["calibration", "clean", "jpeg-1"]
    part = read_split(world.split_file, world.manifest).part
    for condition, rows, matrix in (
        ("calibration", part == "calibration", world.matrix),
        ("clean", part == "test", world.matrix),
        ("jpeg-1", part == "test", world.matrix + 1),
    ):
        found = read_predictions(kept, {condition: world.manifest})[condition]
        assert found.image_ids.tolist() == world.manifest.image_ids[rows].tolist()
        given, scores = FittedProbe.load(probe).predict(matrix[rows].astype(np.float32))
        assert np.array_equal(found.probabilities, given)
        assert np.array_equal(found.ranking, scores)


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
    assert frame[list(PARTIAL_COLUMNS)].isna().all(axis=None)


def test_what_only_some_runs_have_is_missing_in_the_others(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere")
    found = shifted(world, target, excluded_classes=["c"])
    frame = collect_runs([world.folder / "elsewhere.json", world.folder / "clean.json"])
    assert frame["condition"].tolist() == ["clean", "mimic"]
    assert frame["macro_auroc_core"].notna().all()
    for name in ("source_macro_auroc", "target_macro_auroc"):
        assert frame[name].isna().tolist() == [True, False]
        assert frame[name].iloc[1] == found.elsewhere[name]


def test_a_damaged_run_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"encoder": "e"')
    with pytest.raises(UserError, match=r"run\.json is not whole"):
        collect_runs([tmp_path / "run.json"])
