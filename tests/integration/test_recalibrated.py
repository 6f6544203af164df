"""A cell's recalibration and its studies, on cells written as the workflow writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crsbench.calibration import METHODS
from crsbench.calibration.calibrators import CALIBRATORS
from crsbench.calibration.cells import (
    CASES_COLUMNS,
    CHOSEN,
    METRIC_COLUMNS,
    RECALIBRATED_COLUMNS,
    RELIABILITY_COLUMNS,
    SOURCE,
    RecalibratedCell,
    recalibrate_cell,
)
from crsbench.core.errors import UserError
from crsbench.core.files import write_table
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import read_split, write_split, write_test
from crsbench.evaluation.runs import CellFiles, RunFiles, predict_run
from crsbench.features.store import FeatureWriter
from crsbench.metrics.discrimination import macro_auroc
from crsbench.metrics.run_metrics import run_metrics
from crsbench.probes import FittedProbe
from crsbench.studies import recalibration, studies
from crsbench.studies.base import write_study
from crsbench.studies.inputs import Inputs

RECALIBRATION_STUDIES = {
    name: one for name, one in studies().items() if one.job == "recalibrated_cells"
}

SEEDS = (0, 1)
OVERCONFIDENCE = 2.5


def write_manifest(folder: Path, name: str, task: str, classes: str, truth: np.ndarray) -> str:
    ids = [f"{name}{index:05d}" for index in range(len(truth))]
    frame = pd.DataFrame({"image_id": ids, "path": ids, "content_sha256": ids, "dropped": False})
    frame["group"] = [f"{name} {index // 2}" for index in range(len(truth))]
    frame["labels"] = list(truth.astype(np.int8))
    metadata = {"dataset": name, "task": task, "classes": list(classes), "group_namespace": name}
    file = folder / name / "manifest.parquet"
    write_table(file, frame, metadata)
    return str(file)


def write_features(file: Path, ids: np.ndarray, matrix: np.ndarray) -> str:
    with FeatureWriter(file, {"weights_sha256": "0" * 64}) as writer:
        for image_id, row in zip(ids, matrix.astype(np.float32), strict=True):
            writer.append(str(image_id), row)
    return str(file)


def probe_of(task: str, coef: np.ndarray) -> FittedProbe:
    k = len(coef)
    problems = 1 if task == "multiclass" else k
    each = np.ones(problems)
    return FittedProbe(
        *(task, coef, np.zeros(k), each, np.ones(1), np.ones((problems, 1)), each.astype(int)),
        *(100, each.astype(int), each, each, each.astype(bool), False, np.zeros(0, int)),
        np.zeros(0),
    )


def write_cell(folder: Path, task: str, n: int = 1200, target: str = "") -> CellFiles:
    """Features are a case's true logits; the probe makes them too large. Degraded ones are larger
    still. `target`: the classes of a shift target, whose features are twice as large."""
    random = np.random.default_rng(11)

    def cases(count: int, classes: str) -> tuple[np.ndarray, np.ndarray]:
        logits = random.normal(size=(count, 3)) * 1.5
        if task == "multilabel":
            return logits, (random.random((count, 3)) < 1 / (1 + np.exp(-logits)))
        logits -= logits.mean(axis=1, keepdims=True)
        kept = ["abc".index(name) for name in classes]
        odds = np.exp(logits[:, kept])
        share = (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)
        return logits, np.eye(len(kept))[(share < random.random((count, 1))).sum(axis=1)]

    logits, truth = cases(n, "abc")
    manifest = write_manifest(folder, "d", task, "abc", truth)
    ids = read_manifest(manifest).image_ids
    write_test(folder / "test.parquet", manifest, 0.3)
    probes, splits, features, targets = {}, {}, {}, {}
    for seed in SEEDS:
        splits[seed] = str(folder / f"seed{seed}.parquet")
        write_split(splits[seed], manifest, folder / "test.parquet", seed, [100], 0.5)
        probes[seed] = str(folder / f"probe{seed}.npz")
        probe_of(task, (OVERCONFIDENCE + 0.1 * seed) * np.eye(3)).save(probes[seed])
    features["clean"] = write_features(folder / "clean.arrow", ids, logits)
    features["jpeg-1"] = write_features(folder / "jpeg-1.arrow", ids, 2 * logits)
    if target:
        away, labels = cases(1200, target)
        targets["t"] = write_manifest(folder, "t", task, target, labels[:, : len(target)])
        found = read_manifest(targets["t"])
        features["t"] = write_features(folder / "t.arrow", found.image_ids, 2 * away)
    return CellFiles(manifest, splits, features, targets, probes)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellFiles]:
    folder = tmp_path_factory.mktemp("cells")
    return {
        "multiclass": write_cell(folder / "one", "multiclass", target="ac"),
        "multilabel": write_cell(folder / "many", "multilabel", target="abc"),
    }


@pytest.fixture(scope="module")
def cells(files: dict[str, CellFiles]) -> dict[str, RecalibratedCell]:
    return {task: recalibrate_cell(of, [20, 300, 10_000]) for task, of in files.items()}


@pytest.fixture(params=["multiclass", "multilabel"])
def task(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_cell_has_every_seed_condition_and_method(
    task: str, cells: dict[str, RecalibratedCell]
) -> None:
    rows = cells[task].recalibrated
    assert list(rows) == RECALIBRATED_COLUMNS
    assert len(rows) == len(SEEDS) * 3 * 5
    assert rows.groupby(["seed", "condition"])["chosen"].sum().eq(1).all()
    assert rows[[*METRIC_COLUMNS, "cv_brier"]].notna().all(axis=None)
    assert list(cells[task].reliability) == RELIABILITY_COLUMNS
    assert list(cells[task].cases) == CASES_COLUMNS


def test_what_is_not_recalibrated_is_what_the_runs_have(
    task: str, files: dict[str, CellFiles], cells: dict[str, RecalibratedCell]
) -> None:
    """And the others are the library's calibrators, fitted on the calibration part."""
    of = files[task]
    for seed in SEEDS:
        run = RunFiles(of.probes[seed], of.features["clean"], of.manifest, of.splits[seed])
        tested, known = predict_run(run), predict_run(run, part="calibration")
        manifest = read_manifest(of.manifest)
        groups = manifest.groups[np.isin(manifest.image_ids, known.image_ids)]
        part = read_split(of.splits[seed], manifest).part
        assert len(known.truth) == (part == "calibration").sum()
        versions = {"none": tested.probabilities}
        for name in METHODS:
            made = CALIBRATORS[name](task)
            made.fit_probabilities(known.probabilities, known.truth, groups)
            versions[name] = made.recalibrate(tested.probabilities)
        rows = cells[task].recalibrated.set_index(["seed", "condition", "method"])
        for name, version in versions.items():
            expected = run_metrics(task, tested.truth, version, "abc")
            row = rows.loc[(seed, "clean", name)]
            for measure in ("ece", "ece_if_calibrated", "brier", "log_loss", "n_test"):
                assert row[measure] == getattr(expected, measure), (name, measure)
            assert row["macro_auroc"] == pytest.approx(expected.macro_auroc, abs=1e-9)


def test_recalibration_repairs_clean_images_and_keeps_ranking(
    task: str, cells: dict[str, RecalibratedCell]
) -> None:
    clean = cells[task].recalibrated.query("condition == 'clean'")
    ece = clean.groupby("method")["ece"].mean()
    assert ece["none"] > 0.08
    assert (ece[list(METHODS)] < 0.6 * ece["none"]).all()
    auroc = clean.pivot(index="seed", columns="method", values="macro_auroc")
    if task == "multilabel":
        assert (auroc["temperature"] == auroc["none"]).all()
    assert (auroc.sub(auroc["none"], axis=0).abs() < 0.02).all(axis=None)


def test_bins_are_sums_over_seeds_of_what_the_ece_is_made_of(
    task: str, cells: dict[str, RecalibratedCell]
) -> None:
    bins, rows = cells[task].reliability, cells[task].recalibrated
    assert set(bins["condition"]) == {"clean", "t"}
    labels = {"top_label"} if task == "multiclass" else set("abc")
    assert set(bins["label"]) == labels
    n = rows.query("condition == 'clean' and method == 'none'")["n_test"].sum()
    counts = bins.groupby(["condition", "method", "label"])["count"].sum()
    assert (counts["clean"] == n).all()
    empty = bins["count"] == 0
    assert bins.loc[empty, ["mean_confidence", "accuracy"]].isna().all(axis=None)
    filled = bins[~empty]
    assert (filled["mean_confidence"] >= filled["low"] - 1e-12).all()
    assert (filled["mean_confidence"] <= filled["high"] + 1e-12).all()
    assert set(bins["method"]) == {"none", *METHODS, CHOSEN}


def test_more_cases_calibrate_better_and_all_of_them_give_the_cell(
    task: str, cells: dict[str, RecalibratedCell]
) -> None:
    cases, rows = cells[task].cases, cells[task].recalibrated
    own = cases[cases["target"] == "d"]
    whole = rows["n_calibration"].iloc[0]
    sizes = own.groupby("seed")["cases"].unique()
    for seed in SEEDS:
        n = rows.loc[rows["seed"] == seed, "n_calibration"].iloc[0]
        assert sorted(sizes[seed]) == [0, 20, 300, n]  # 10,000 there are not
        last = own[(own["seed"] == seed) & (own["cases"] == n)].set_index("method")
        clean = rows[(rows["seed"] == seed) & (rows["condition"] == "clean")].set_index("method")
        for name in METHODS:
            assert last.loc[name, "ece"] == clean.loc[name, "ece"]
    assert whole > 300
    chosen = own[own["method"] == CHOSEN].groupby("cases")["ece"].mean()
    assert chosen.iloc[-1] < chosen.iloc[0]


def test_a_target_is_recalibrated_on_one_half_of_its_groups_and_tested_on_the_other(
    task: str, files: dict[str, CellFiles], cells: dict[str, RecalibratedCell]
) -> None:
    elsewhere = cells[task].cases.query("target == 't'")
    assert set(elsewhere["cases"]) == {0, 20, 300, 600}  # 10,000 there are not
    assert elsewhere["n_test"].eq(600).all()  # 300 groups of two images each
    zero = elsewhere[elsewhere["cases"] == 0]
    assert set(zero["method"]) == {"none", SOURCE}
    mean = elsewhere.groupby(["method", "cases"])["ece"].mean()
    # Twice as large at the target: the source's temperature is not enough there.
    assert mean[CHOSEN, 300] < mean[SOURCE, 0] < mean["none", 0]
    if task == "multiclass":  # two of three classes: a ranking by the probe's own probabilities
        rows = cells[task].recalibrated.query("condition == 't' and method == 'none'")
        of = files[task]
        run = RunFiles(of.probes[0], of.features["t"], of.manifest, of.splits[0], of.targets["t"])
        tested = predict_run(run)
        expected = macro_auroc(tested.truth, tested.probabilities)
        assert rows.loc[rows["seed"] == 0, "macro_auroc"].iloc[0] == expected


def test_the_same_files_give_the_same_tables(
    files: dict[str, CellFiles], cells: dict[str, RecalibratedCell]
) -> None:
    other = replace(files["multiclass"], made_by={"t": {"short_side": 224}})
    with pytest.raises(UserError, match=r"was made with settings null, the run wants .*forcerun"):
        recalibrate_cell(other, [20])
    again = recalibrate_cell(files["multiclass"], [10_000, 300, 20])
    for ours, theirs in zip(again.parts(), cells["multiclass"].parts(), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


# --- the studies ---------------------------------------------------------------------------------


def gathered(cells: dict[str, RecalibratedCell], primary: set[str]) -> Inputs:
    names = {"multiclass": ("first", "skin"), "multilabel": ("second", "chest")}
    parts = []
    for place in range(3):
        frames = []
        for task, cell in cells.items():
            encoder, dataset = names[task]
            frame = cell.parts()[place].assign(encoder=encoder, dataset=dataset)
            if "target" in frame:
                frame["target"] = frame["target"].replace({"d": dataset})
            frames.append(frame.assign(primary=encoder in primary))
        parts.append(pd.concat(frames, ignore_index=True))
    named = ("recalibrated", "reliability", "recalibration_cases")
    inputs = Inputs({"first": {"title": "First"}}, {}, {"t": {"title": "t"}}, {})
    return inputs.having(**dict(zip(named, parts, strict=True)))


@pytest.fixture(scope="module")
def both(cells: dict[str, RecalibratedCell]) -> Inputs:
    return gathered(cells, {"first", "second"})


def test_findings_bear_the_published_names(both: Inputs) -> None:
    found = recalibration.recalibration(both).findings
    rows = both.recalibrated.query("condition == 'clean'")
    skin = rows[rows["dataset"] == "skin"]
    before = skin[skin["method"] == "none"]["ece"].mean()
    after = skin[skin["chosen"]]["ece"].mean()
    assert found["primary_tests"] == 2
    assert found["ece_before.skin.first"] == pytest.approx(before)
    assert found["ece_after.skin.first"] == pytest.approx(after)
    chest = rows[rows["dataset"] == "chest"]
    falls = [
        before - after,
        chest[chest["method"] == "none"]["ece"].mean() - chest[chest["chosen"]]["ece"].mean(),
    ]
    assert found["mean_absolute_ece_reduction.value"] == pytest.approx(np.mean(falls))
    reach = 12.7062 * np.std(falls, ddof=1) / np.sqrt(2)  # Student's t, one degree of freedom
    assert found["mean_absolute_ece_reduction.high"] == pytest.approx(
        np.mean(falls) + reach, rel=1e-4
    )
    assert found["relative_ece_reduction.low"] <= found["relative_ece_reduction.high"] <= 1
    assert abs(found["mean_auroc_change"]) < 0.02


def test_only_primary_cells_enter_the_findings(cells: dict[str, RecalibratedCell]) -> None:
    one = recalibration.recalibration(gathered(cells, {"first"}))
    assert set(one.table["encoder"]) == {"first", "second"}
    assert one.findings["primary_tests"] == 1
    assert np.isnan(one.findings["mean_absolute_ece_reduction.low"])
    none = gathered(cells, set())
    for name in RECALIBRATION_STUDIES:
        study = RECALIBRATION_STUDIES[name](none)
        assert study.sentence.startswith("Not run: no primary cell")
        assert not study.findings


def test_every_study_is_written_with_sentence_and_figure(both: Inputs, tmp_path: Path) -> None:
    for name in RECALIBRATION_STUDIES:
        study = RECALIBRATION_STUDIES[name](both)
        assert study.sentence.endswith(".")
        assert "nan" not in study.sentence
        write_study(tmp_path / "s.parquet", tmp_path / "s.svg", name, study)
        svg = (tmp_path / "s.svg").read_text("utf-8")
        assert svg.startswith("<svg")
        assert "mathdefault" not in svg  # mathematics is shown as it is written


def test_under_stress_and_elsewhere_ece_is_reported_by_kind(both: Inputs) -> None:
    study = recalibration.recalibration_under_stress(both)
    chosen = study.table[study.table["method"] == CHOSEN]
    for kind, pairs in (("clean", 2), ("degraded", 2), ("shift", 2)):
        rows = chosen[chosen["kind"] == kind]
        assert study.findings[f"{kind}.pairs"] == len(rows) == pairs
        assert study.findings[f"{kind}.mean_ece_after"] == pytest.approx(rows["ece"].mean())
        assert study.findings[f"{kind}.improved"] == (rows["ece"] < rows["ece_before"]).sum()
    # Features twice as large need twice the temperature: what clean images taught is too little.
    assert study.findings["degraded.mean_ece_after"] > study.findings["clean.mean_ece_after"]


def test_a_target_without_cases_to_give_is_drawn_as_it_is(both: Inputs, tmp_path: Path) -> None:
    few = both.having(recalibration_cases=both.recalibration_cases.query("cases == 0"))
    study = recalibration.recalibration_on_target(few)
    assert "recalibrated at the source" in study.sentence
    write_study(tmp_path / "s.parquet", tmp_path / "s.svg", "recalibration_on_target", study)


def test_the_curve_sums_up_the_sizes_that_every_cell_has(both: Inputs) -> None:
    study = recalibration.recalibration_cases(both)
    sizes = [int(name.split(".")[-1]) for name in study.findings if "chosen" in name]
    assert {20, 300} <= set(sizes)
    rows = study.table.query("method == 'chosen' and cases == 300")
    assert study.findings["mean_ece.chosen.300"] == pytest.approx(rows["ece"].mean())
    elsewhere = recalibration.recalibration_on_target(both)
    assert set(elsewhere.table["target"]) == {"t"}
    assert elsewhere.findings["mean_ece.chosen.300"] < elsewhere.findings["mean_ece.source"]
