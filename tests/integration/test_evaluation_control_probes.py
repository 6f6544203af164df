"""Control probes in the workflow: their runs against scikit-learn, their study against SciPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from crsbench.config.grid import Cell, Run
from crsbench.config.load import load_config
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import read_json
from crsbench.core.names import AGGREGATE
from crsbench.data.splits import read_split
from crsbench.evaluation.control_probes import (
    ControlSettings,
    collect_control_runs,
    write_control_runs,
)
from crsbench.evaluation.runs import RUN_COLUMNS, CellFiles, RunFiles, evaluate_run
from crsbench.probes.knn import NeighbourSettings
from crsbench.probes.mlp import PerceptronSettings
from crsbench.score import crs_table
from crsbench.studies.control_probes import control_probes
from crsbench.studies.inputs import Inputs
from worlds.runs import World, fitted, relabelled, write_world
from worlds.studies import World as Panel

PERCEPTRON = PerceptronSettings(
    c_grid=(0.01, 1.0), hidden=8, max_epochs=20, patience=3, learning_rate=2e-2, batch_rows=400
)
BOTH = ControlSettings((100,), NeighbourSettings(5, "euclidean"), PERCEPTRON)
NEIGHBOURS = replace(BOTH, perceptron=None)
CELL = Cell("e", "d")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """As in the workflow's jobs."""
    torch.set_num_threads(1)


@pytest.fixture(params=["multiclass", "multilabel"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return write_world(tmp_path, request.param)


def control_runs(
    world: World, settings: ControlSettings, target: World | None = None, **more: Any
) -> list[dict[str, Any]]:
    """The runs in the file of a cell with one seed, a degraded condition and perhaps a target."""
    features = {
        "clean": world.features("clean", world.matrix),
        "jpeg-1": world.features("jpeg-1", world.matrix + 0.5),
    }
    targets = {}
    if target is not None:
        features["mimic"] = target.features("mimic", target.matrix)
        targets["mimic"] = str(target.manifest_file)
    paths = {name: str(path) for name, path in features.items()}
    files = CellFiles(str(world.manifest_file), {0: str(world.split_file)}, paths, targets)
    output = world.folder / "control.json"
    write_control_runs(output, CELL, files, settings, **more)
    content = read_json(output)
    assert (content["encoder"], content["dataset"]) == ("e", "d")
    return content["runs"]


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_of_the_neighbours_is_what_scikit_learn_gives(world: World) -> None:
    clean, degraded = control_runs(world, NEIGHBOURS)
    split = read_split(world.split_file, world.manifest)
    train, test = split.labelled(100), split.part == "test"
    matrix = world.matrix.astype(np.float32).astype(float)
    scaler = StandardScaler().fit(matrix[split.part == "train"])
    truth = world.manifest.truth
    target = truth[train].argmax(1) if world.task == "multiclass" else truth[train]
    model = KNeighborsClassifier(5, algorithm="brute").fit(scaler.transform(matrix[train]), target)
    for found, moved in ((clean, 0.0), (degraded, 0.5)):
        shares = model.predict_proba(scaler.transform(matrix[test] + moved))
        if world.task == "multilabel":
            shares = np.stack([share[:, 1] for share in shares], axis=1)
        aurocs = [roc_auc_score(truth[test, k], shares[:, k]) for k in range(3)]
        assert found["macro_auroc"] == pytest.approx(np.mean(aurocs), abs=1e-12)
        assert found["brier"] == pytest.approx(
            np.square(shares - truth[test]).sum()
            / (test.sum() * (1 if world.task == "multiclass" else 3)),
            abs=1e-12,
        )
        assert found["probe"] == {
            **{"name": "neighbours", "k": 5, "metric": "euclidean", "c": [], "converged": True},
            **{"capped": False, "n_train": int(train.sum()), "classes_given_one_group": []},
        }
    if world.task == "multiclass":
        shares = model.predict_proba(scaler.transform(matrix[test]))
        wanted = log_loss(truth[test].argmax(1), shares, labels=[0, 1, 2])
        assert clean["log_loss"] == pytest.approx(wanted, rel=1e-9)


def test_control_runs_hold_what_the_logistic_runs_hold(world: World) -> None:
    features = world.features("clean", world.matrix)
    files = fitted(world, features)[100], features, world.manifest_file, world.split_file
    output = world.folder / "run.json"
    evaluate_run(Run("e", "d", 0, "clean", 100), RunFiles(*map(str, files)), output, ["a"])
    logistic = read_json(output)
    runs = control_runs(world, BOTH, excluded_classes=["a"])
    assert [(run["probe"]["name"], run["condition"]) for run in runs] == [
        (probe, condition)
        for probe in ("neighbours", "perceptron")
        for condition in ("clean", "jpeg-1")
    ]
    for run in runs:
        assert run.keys() == logistic.keys()
        assert run["n_test"] == logistic["n_test"]
        assert run["weights_sha256"] == logistic["weights_sha256"]
        assert run["macro_auroc_core"] is not None
    assert runs[2]["macro_auroc"] > 0.6  # the perceptron has learnt what the features hold
    perceptron = runs[2]["probe"]
    assert perceptron["c"][0] in PERCEPTRON.c_grid
    assert perceptron["n_train"] == logistic["probe"]["n_train"]


def test_a_shift_target_stands_beside_the_same_probes_clean_run(world: World) -> None:
    target = write_world(world.folder / "target", world.task, "elsewhere", classes="ca")
    runs = control_runs(world, BOTH, target)
    for clean, elsewhere in ((runs[0], runs[2]), (runs[3], runs[5])):
        assert (clean["condition"], elsewhere["condition"]) == ("clean", "mimic")
        assert clean["probe"] == elsewhere["probe"]
        assert elsewhere["shared_classes"] == ["a", "c"]
        wanted = np.mean([clean["auroc"]["a"], clean["auroc"]["c"]])
        assert elsewhere["source_macro_auroc"] == pytest.approx(wanted, abs=1e-12)


def test_a_fraction_of_the_labels_sees_its_own_only(world: World) -> None:
    settings = replace(BOTH, fractions=(10,))
    before = control_runs(world, settings)
    split = read_split(world.split_file, world.manifest)
    truth = world.manifest.truth.copy()
    unseen = (split.part == "train") & ~split.labelled(10)
    truth[unseen] = np.random.default_rng(3).permutation(truth[unseen])
    assert control_runs(relabelled(world, truth), settings) == before
    assert before[0]["percent"] == 10
    assert before[0]["probe"]["n_train"] == split.labelled(10).sum()


def test_few_labels_and_absent_classes_are_recorded_not_dropped(world: World) -> None:
    truth = world.manifest.truth.copy()
    train = read_split(world.split_file, world.manifest).part == "train"
    truth[train, 2] = 0  # the last class is in the test set alone
    if world.task == "multiclass":
        truth[train & (truth.sum(1) == 0), 0] = 1
    runs = control_runs(relabelled(world, truth), replace(BOTH, fractions=(1,)))
    neighbours, perceptron = runs[0], runs[2]
    assert neighbours["probe"]["n_train"] <= 5
    assert perceptron["probe"]["classes_at_floor"][-1] == "c"
    for run in (neighbours, perceptron):
        assert run["n_classes_defined"] == 3
        assert run["auroc"]["c"] == 0.5  # a constant ranks nothing
        assert np.isfinite(run["log_loss"])


def test_unknown_labels_count_neither_in_the_fit_nor_in_the_metrics(tmp_path: Path) -> None:
    world = write_world(tmp_path, "multilabel")
    truth = world.manifest.truth.copy()
    truth[np.random.default_rng(8).random(truth.shape) < [0.0, 0.3, 0.1]] = -1
    found = control_runs(relabelled(world, truth), NEIGHBOURS)
    split = read_split(world.split_file, world.manifest)
    train, test = split.labelled(100), split.part == "test"
    scaler = StandardScaler().fit(world.matrix[split.part == "train"])
    aurocs = []
    for k in range(3):
        rows, asked = train & (truth[:, k] >= 0), test & (truth[:, k] >= 0)
        model = KNeighborsClassifier(5, algorithm="brute")
        model.fit(scaler.transform(world.matrix[rows]), truth[rows, k])
        shares = model.predict_proba(scaler.transform(world.matrix[asked]))[:, 1]
        aurocs.append(roc_auc_score(truth[asked, k], shares))
    assert found[0]["macro_auroc"] == pytest.approx(np.mean(aurocs), abs=1e-9)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    world = write_world(tmp_path, "multilabel")
    control_runs(world, BOTH)
    before = (world.folder / "control.json").read_bytes()
    control_runs(world, BOTH)
    assert (world.folder / "control.json").read_bytes() == before


def test_the_table_has_the_columns_of_runs_behind_the_probe(world: World) -> None:
    runs = control_runs(world, replace(BOTH, fractions=(1, 100)))
    frame = collect_control_runs([world.folder / "control.json"])
    assert frame.columns[:1].tolist() == ["probe"]
    assert set(RUN_COLUMNS) < set(frame.columns)
    assert len(frame) == len(runs) == 2 * 2 * 2
    keys = ["probe", "encoder", "dataset", "seed", "condition", "percent"]
    assert not frame.duplicated(keys).any()
    assert frame.sort_values(keys, ignore_index=True).equals(frame)
    assert frame.loc[frame["probe"] == "neighbours", "c"].isna().all()
    by_key = frame.set_index(keys)["macro_auroc"]
    for run in runs:
        key = run["probe"]["name"], *(run[name] for name in keys[1:])
        assert by_key[key] == run["macro_auroc"]


# --- the config ---------------------------------------------------------------------------------


def test_the_perceptron_has_the_logistic_probes_budget(published: Config) -> None:
    settings = ControlSettings.of(published.control_probes, published.settings["probe"])
    assert settings.perceptron is not None
    assert settings.perceptron.c_grid == tuple(published.settings["probe"]["c_grid"])
    assert settings.perceptron.folds == published.settings["probe"]["folds"]
    assert settings.neighbours == NeighbourSettings(5, "cosine", "cuda")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fractions": [100, 50]}, "control_probes.fractions has 50, which is none of"),
        ({"fractions": [10]}, r"control_probes.fractions"),
        ({"neighbours": None, "perceptron": None}, "control_probes names no probe"),
        ({"neighbours": {"k": 5, "metric": "manhattan"}}, "manhattan.*cosine, euclidean"),
        ({"neighbours": {"k": 0, "metric": "cosine"}}, "control_probes.neighbours.k is 0"),
        ({"perceptron": {"hiden": 3}}, "unknown key 'hiden'.*did you mean 'hidden'"),
    ],
)
def test_a_wrong_key_is_reported(
    change: dict[str, Any], sentence: str, settings: Callable[[str], Any], home: Path
) -> None:
    config = settings("config")
    control = {**config["control_probes"], **change}
    config["control_probes"] = {key: value for key, value in control.items() if value is not None}
    with pytest.raises(UserError, match=sentence):
        load_config(config, home)


# --- the study ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def panel(published: Config) -> Panel:
    return Panel.of(published)


@pytest.fixture(scope="module")
def inputs(panel: Panel) -> Inputs:
    return panel.inputs()


def control_of(runs: pd.DataFrame, **noise: float) -> pd.DataFrame:
    """SYNTHETIC control runs: the logistic ones, each encoder moved by noise of this size."""
    parts = []
    for name, size in noise.items():
        rng = np.random.default_rng(len(name))
        moved = {encoder: rng.normal(0, size) for encoder in sorted(runs["encoder"].unique())}
        part = runs.copy()
        part["macro_auroc"] = (part["macro_auroc"] + part["encoder"].map(moved)).clip(0.2, 0.999)
        part.insert(0, "probe", name)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def row_of(table: pd.DataFrame, **key: str) -> pd.Series:
    for name, value in key.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_rankings_are_compared_as_scipy_compares_them(inputs: Inputs) -> None:
    full = inputs.runs[inputs.runs["percent"] == 100]
    control = control_of(full, neighbours=0.02, perceptron=0.0)
    study = control_probes(inputs.having(control_runs=control))
    clean = full[full["condition"] == "clean"]
    moved = control[(control["probe"] == "neighbours") & (control["condition"] == "clean")]
    by_cell = [
        rows.groupby(["dataset", "encoder"])["macro_auroc"].mean() for rows in (clean, moved)
    ]
    for dataset in inputs.datasets:
        a, b = (values[dataset] for values in by_cell)
        row = row_of(
            study.table, dataset=dataset, measure="macro_auroc", probe_a="logistic",
            probe_b="neighbours",
        )  # fmt: skip
        assert row["n_encoders"] == len(a) == (13 if dataset == "aptos2019" else 15)
        assert row["kendall_tau"] == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-12)
        assert row["spearman_rho"] == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
        assert (row["leader_a"], row["leader_b"]) == (a.idxmax(), b.idxmax())
    a, b = (values.groupby("encoder").mean() for values in by_cell)
    assert study.findings["neighbours.macro_auroc.kendall_tau"] == pytest.approx(
        stats.kendalltau(a, b).statistic, abs=1e-12
    )
    assert study.findings["logistic.macro_auroc.leader"] == a.idxmax()
    assert study.findings["neighbours.macro_auroc.leader"] == b.idxmax()
    assert study.findings["perceptron.macro_auroc.kendall_tau"] == pytest.approx(1.0)
    assert "leads under both" in study.sentence
    pairs = study.table[["probe_a", "probe_b"]].drop_duplicates().to_numpy().tolist()
    assert pairs == [
        ["logistic", "neighbours"],
        ["logistic", "perceptron"],
        ["neighbours", "perceptron"],
    ]


def test_less_is_better_for_calibration_and_drops(inputs: Inputs) -> None:
    full = inputs.runs[inputs.runs["percent"] == 100]
    table = control_probes(inputs.having(control_runs=control_of(full, neighbours=0.0))).table
    ece = full[full["condition"] == "clean"].groupby(["dataset", "encoder"])["ece"].mean()
    for dataset in inputs.datasets:
        assert row_of(table, dataset=dataset, measure="ece")["leader_a"] == ece[dataset].idxmin()
    # Retention needs fractions below 100 %, and the CRS needs retention.
    assert set(table["measure"]) == {"macro_auroc", "ece", "drop"}


def test_with_all_fractions_the_crs_is_compared_too(inputs: Inputs) -> None:
    table = control_probes(
        inputs.having(control_runs=control_of(inputs.runs, neighbours=0.0))
    ).table
    crs = crs_table(inputs.axes, inputs.scoring, None, inputs.floors)
    for dataset in [*inputs.datasets, AGGREGATE]:
        row = row_of(table, dataset=dataset, measure="crs")
        rows = crs[crs["dataset"] == dataset].set_index("encoder")["crs"]
        assert row["leader_a"] == rows.idxmax()
        assert row["kendall_tau"] == pytest.approx(1.0)
        assert row["same_leader"]
    assert set(table["measure"]) == {"macro_auroc", "ece", "retention", "drop", "crs"}


def test_the_logistic_retention_is_that_of_the_same_fractions(inputs: Inputs) -> None:
    some = inputs.runs[inputs.runs["percent"].isin([5, 100])]
    control = control_of(some, neighbours=0.0)
    table = control_probes(inputs.having(control_runs=control)).table
    row = row_of(table, dataset=AGGREGATE, measure="retention")
    assert row["kendall_tau"] == pytest.approx(1.0)  # not so against the mean over four fractions
    assert row["inverted_pairs"] == 0


def test_leaders_that_tie_are_both_named(inputs: Inputs) -> None:
    full = inputs.runs[inputs.runs["percent"] == 100].copy()
    best = full["encoder"].isin(["mae", "clip"]) & (full["condition"] == "clean")
    control = control_of(full, neighbours=0.0)
    control.loc[best.to_numpy(), "macro_auroc"] = 0.9995
    row = row_of(
        control_probes(inputs.having(control_runs=control)).table,
        dataset="isic2019",
        measure="macro_auroc",
    )
    assert row["leader_b"] == "clip and mae"
    assert not row["same_leader"]


def test_floors_are_not_ranked_and_two_encoders_not_compared(panel: Panel) -> None:
    with_floor = panel.with_floors(["mae"]).inputs()
    control = control_of(with_floor.runs, neighbours=0.0)
    study = control_probes(with_floor.having(control_runs=control))
    assert study.findings["neighbours.macro_auroc.kendall_tau"] == pytest.approx(1.0)
    assert study.table.loc[study.table["dataset"] == "isic2019", "n_encoders"].unique() == [14]
    two = panel.only(["mae", "clip"]).inputs()
    study = control_probes(two.having(control_runs=control_of(two.runs, neighbours=0.0)))
    assert study.sentence == ("Not run: the panel has 2 ranked encoders, and a comparison needs 3.")
    assert study.findings == {}


def test_an_undefined_auroc_is_left_out_and_counted(inputs: Inputs) -> None:
    full = inputs.runs[inputs.runs["percent"] == 100].copy()
    full["macro_auroc"] = full["macro_auroc"].where(full["encoder"] != "vit_b16")
    table = control_probes(inputs.having(control_runs=control_of(full, neighbours=0.0))).table
    assert row_of(table, dataset="isic2019", measure="macro_auroc")["n_encoders"] == 14
    assert row_of(table, dataset=AGGREGATE, measure="macro_auroc")["n_encoders"] == 14
    assert row_of(table, dataset="isic2019", measure="ece")["n_encoders"] == 15
