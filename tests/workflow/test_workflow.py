"""The workflow through its public door: `snakemake` targets on a small panel of our own."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from crsbench.calibration import METHODS
from crsbench.core.files import read_table, verify_checksum
from crsbench.data.manifest import read_manifest
from crsbench.evaluation.predictions import read_predictions
from crsbench.studies import studies
from worlds.projects import (
    Project,
    Snakemake,
    make_project,
    own_encoder,
    refused,
)
from worlds.workflow import rules_of_workflow, snakemake_command

CASE_STUDIES = [
    name for name, one in studies().items() if one.job in ("kept_predictions", "features")
]
OF_TABLES = [name for name, one in studies().items() if one.job == "tables"]


@pytest.fixture(scope="module")
def untouched(
    tmp_path_factory: pytest.TempPathFactory, home: Path, snakemake: Snakemake
) -> Project:
    """The small panel, before anything ran."""
    return make_project(tmp_path_factory.mktemp("untouched") / "p", home, snakemake)


@pytest.fixture(scope="module")
def finished(untouched: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small panel after a whole run on two cores, in a folder with spaces and umlauts."""
    project = untouched.copy(tmp_path_factory.mktemp("finished") / "ein Ordner für alles")
    ended = project.run("--quiet", "rules")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished panel to change."""
    return finished.copy(tmp_path / "copy")


def planned(ended: subprocess.CompletedProcess[str]) -> Counter[str]:
    """The job counts of a dry run by rule."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = re.search(r"Job stats:\njob +count\n[-\s]+\n(.*?)\ntotal", ended.stdout, re.DOTALL)
    if table is None:
        assert "Nothing to be done" in ended.stdout + ended.stderr
        return Counter()
    return Counter({line.split()[0]: int(line.split()[1]) for line in table[1].splitlines()})


# --- a whole run --------------------------------------------------------------------------------


def test_every_file_that_a_later_step_reads_carries_a_checksum_of_all_of_it(
    finished: Project,
) -> None:
    """What has none is an end product, an image, or vouched for by digests in another file."""
    results = finished.results
    files = {
        file
        for file in results.rglob("*")
        if file.is_file() and file.relative_to(results).parts[0] not in ("logs", "report", "paper")
    }
    without = {"audit.md", "images.cache.jsonl", "reproduction.tsv", "table.csv"}
    checksummed = {file for file in files if file.suffix != ".png" and file.name not in without}
    assert {file.suffix for file in checksummed} >= {".arrow", ".json", ".npz", ".parquet", ".svg"}
    for file in checksummed:
        content = bytearray(file.read_bytes())
        verify_checksum(bytes(content))
        content[len(content) // 2] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            verify_checksum(bytes(content))


def test_a_run_makes_the_tables_of_the_whole_panel(finished: Project) -> None:
    runs = pd.read_parquet(finished.results / "tables/runs.parquet")
    # 3 encoders × 2 seeds × 2 fractions × (4 conditions of tints + 5 of chest)
    assert len(runs) == 3 * 2 * 2 * (4 + 5)
    assert len(pd.read_parquet(finished.results / "tables/rows.parquet")) == len(runs) / 2
    axes = pd.read_parquet(finished.results / "tables/axes.parquet")
    assert set(axes["seed"]) == {-1, 0, 1}
    assert axes.loc[axes["dataset"] == "chest", "shift_drop"].notna().all()
    assert axes.loc[axes["dataset"] == "tints", "shift_drop"].isna().all()
    crs = pd.read_parquet(finished.results / "tables/crs.parquet")
    assert set(crs["dataset"]) == {"tints", "chest", "aggregate"}
    assert crs.loc[crs["encoder"] == "floor", "crs_rank"].isna().all()
    assert set(crs.loc[crs["encoder"] != "floor", "crs_rank"]) <= {1, 2}


def test_the_tints_are_learnt_from_their_means(finished: Project) -> None:
    runs = pd.read_parquet(finished.results / "tables/runs.parquet")
    clean = runs[(runs["dataset"] == "tints") & (runs["condition"] == "clean")]
    full = clean[(clean["percent"] == 100) & (clean["encoder"] == "means")]
    assert (full["macro_auroc"] > 0.95).all()


def test_the_report_is_one_offline_page_that_marks_what_is_synthetic(finished: Project) -> None:
    page = (finished.results / "report/index.html").read_text("utf-8")
    shown = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    links = re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]+)", shown)
    assert all(link.startswith(("#", "data:")) for link in links), links
    assert "Synthetic data." in page
    assert page.index("Chest (synthetic)") > 0
    assert "A floor" in page


def test_every_study_has_a_table_a_sentence_and_a_figure(finished: Project) -> None:
    for name in [*OF_TABLES, *CASE_STUDIES]:
        _, metadata = read_table(finished.results / f"studies/{name}.parquet")
        assert metadata["sentence"].endswith("."), name
        assert (finished.results / f"studies/{name}.svg").read_text("utf-8").startswith("<svg")
    # Two ranked encoders have no correlation, and none is made up.
    _, metadata = read_table(finished.results / "studies/rank_agreement.parquet")
    assert metadata["sentence"] == (
        "Not run: the panel has 2 ranked encoders, and a comparison needs 3."
    )


def test_what_is_not_recalibrated_has_the_ece_of_the_runs(finished: Project) -> None:
    keys = ["encoder", "dataset", "seed", "condition"]
    table = pd.read_parquet(finished.results / "tables/recalibrated.parquet")
    runs = pd.read_parquet(finished.results / "tables/runs.parquet")
    runs = runs[runs["percent"] == 100].set_index(keys).sort_index()
    before = table[table["method"] == "none"].set_index(keys).sort_index()
    assert len(before) == 3 * 2 * (4 + 5)  # all cells, seeds and conditions
    for name in ("ece", "ece_if_calibrated", "brier", "macro_auroc"):
        assert (before[name] == runs[name]).all(), name
    assert set(table.loc[table["primary"], "encoder"]) == {"means"}


def test_a_table_of_ones_own_predictions_is_recalibrated(untouched: Project) -> None:
    refused(
        untouched.run("--", "external_predictions"),
        r"needs a table: --config external_predictions=FILE",
    )
    refused(
        untouched.run("--config", "external_predictions=none.csv", "--", "external_predictions"),
        "external_predictions names the file none.csv, which does not exist",
    )
    random = np.random.default_rng(0)
    table = pd.DataFrame({"p_ill": random.random(80)})
    table["y_ill"] = (random.random(80) < table["p_ill"] ** 2).astype(int)
    table.to_csv(untouched.folder / "mine.csv", index=False)
    ended = untouched.run(
        "--config", "external_predictions=mine.csv", "results=own", "--", "external_predictions"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made = {file.name for file in (untouched.folder / "own/external_predictions").iterdir()}
    calibrators = {f"{name}.json" for name in METHODS}
    files = {"calibration.parquet", "recalibrated.parquet", "reliability.svg"}
    assert made == files | calibrators


def test_without_its_keys_there_is_no_recalibration(untouched: Project, tmp_path: Path) -> None:
    other = untouched.copy(tmp_path / "without")
    other.edit("config", lambda config: config.pop("recalibration"))
    other.edit("config", lambda config: config["studies"].pop("stress_calibration"))
    ended = other.run("-n")
    assert not {job for job in planned(ended) if "calibrat" in job}
    assert "stress_calibration" not in ended.stdout


def test_the_studies_of_test_cases_say_what_the_runs_say(finished: Project) -> None:
    tables = {
        name: pd.read_parquet(finished.results / f"studies/{name}.parquet") for name in CASE_STUDIES
    }
    cells = {(encoder, of) for encoder in ("means", "spread", "floor") for of in ("tints", "chest")}
    for name in ("operating_points", "selective_prediction", "conformal_sets", "shift_detection"):
        table = tables[name]
        assert set(zip(table["encoder"], table["dataset"], strict=True)) == cells, name
        conditions = {"clean", "jpeg-1", "jpeg-2", "rician_noise-1", "foreign"}
        assert set(table["condition"]) == conditions - (
            {"clean"} if name == "shift_detection" else set()
        )
    # The error of the top label is 1 less the accuracy, which the kept predictions give.
    manifest = read_manifest(finished.results / "data/tints/manifest.parquet")
    accuracy = []
    for seed in (0, 1):
        file = finished.results / f"predictions/means/tints/seed{seed}.parquet"
        kept = read_predictions(file, {"jpeg-2": manifest})["jpeg-2"]
        accuracy.append((kept.truth.argmax(1) == kept.probabilities.argmax(1)).mean())
    error = tables["selective_prediction"].set_index(["encoder", "dataset", "condition"])["error"]
    assert error["means", "tints", "jpeg-2"] == pytest.approx(1 - np.mean(accuracy))
    groups = tables["subgroups"]
    assert set(groups["dataset"]) == {"chest"}  # tints have no subgroup columns
    assert set(groups["column"]) == {"sex", "view"}
    axes = pd.read_parquet(finished.results / "tables/axes.parquet")
    axes = axes[axes["seed"] == -1].set_index(["encoder", "dataset"])["axis_robustness"]
    equity = tables["equity"].set_index(["encoder", "dataset"])["axis_robustness"]
    assert (equity == axes[equity.index]).all()


def test_studies_that_are_not_asked_for_leave_no_trace(project: Project) -> None:
    def without(config: dict[str, Any]) -> None:
        kept = ("baseline_encoder", "reference_invariance", "replicates", "operating_points")
        config["studies"] = {key: config["studies"][key] for key in kept}
        del config["studies"]["operating_points"]["net_benefit"]

    project.edit("config", without)
    listed = project.run("-n", "--quiet", "progress", "--summary").stdout
    named = {name for name in CASE_STUDIES if f"studies/{name}.parquet" in listed}
    assert named == {"operating_points"}
    assert "studies/rank_agreement.parquet" in listed
    project.edit("config", lambda config: config["studies"].pop("operating_points"))
    listed = project.run("-n", "--quiet", "progress", "--summary").stdout
    assert not [name for name in CASE_STUDIES if f"studies/{name}.parquet" in listed]
    assert "studies_of_features" not in listed


def test_a_subgroup_column_that_no_data_set_has_is_reported(project: Project) -> None:
    project.edit("config", lambda c: c["studies"]["subgroups"].update(columns=["sex", "veiw"]))
    refused(project.run("--", "results/studies/subgroups.parquet"), r"'veiw'.*did you mean 'view'")
    # A column of a data set that the panel lacks is no mistake: it is reported, and left out.
    aside = {"title": "Aside", "licence": "CC0-1.0", "task": "multiclass", "classes": ["a", "b"]}
    aside |= {
        "reader": "phantom",
        "phantom": {"kind": "skin", "site": "home", "count": 9, "size": 32},
    }
    project.edit("datasets", lambda c: c.update(aside=aside))
    project.edit("config", lambda c: c["studies"]["subgroups"].update(columns=["sex", "skin_tone"]))
    ended = project.run("--", "results/studies/subgroups.parquet")
    assert ended.returncode == 0, ended.stderr
    assert "no data set of the panel has it: skin_tone." in ended.stdout + ended.stderr
    found = pd.read_parquet(project.results / "studies/subgroups.parquet")
    assert set(found["column"]) == {"sex"}
    assert found["overlap"].isin(["no", "unknown"]).all()


def test_published_figures_that_the_run_lacks_stay_empty(finished: Project) -> None:
    table = pd.read_parquet(finished.results / "tables/reproduction.parquet")
    assert not table["same_panel"].any()
    tau = table.set_index("figure").loc["rank_agreement.kendall_tau"]
    assert tau["published"] == 0.6
    assert pd.isna(tau["ours"])
    assert tau["note"].startswith("not run: the panel has 2 ranked encoders")
    lines = (finished.results / "tables/reproduction.tsv").read_text("utf-8").splitlines()
    assert len(lines) == len(table) + 1


def test_kept_predictions_give_the_values_of_the_runs(finished: Project) -> None:
    runs = pd.read_parquet(finished.results / "tables/runs.parquet")
    runs = runs[runs["percent"] == 100]
    degraded = {"jpeg-1", "jpeg-2", "rician_noise-1"}
    assert set(runs["condition"]) == {"clean", "foreign", *degraded}
    for run in runs.itertuples():
        tested = run.condition if run.condition == "foreign" else run.dataset
        manifest = read_manifest(finished.results / f"data/{tested}/manifest.parquet")
        file = finished.results / f"predictions/{run.encoder}/{run.dataset}/seed{run.seed}.parquet"
        kept = read_predictions(file, {run.condition: manifest})[run.condition].metrics()
        assert kept.macro_auroc == pytest.approx(run.macro_auroc, abs=1e-12)
        assert kept.ece == pytest.approx(run.ece, abs=1e-12)


def test_test_cases_are_resampled_about_the_auroc_of_the_table(finished: Project) -> None:
    cases = pd.read_parquet(finished.results / "tables/case_bootstrap.parquet")
    axes = pd.read_parquet(finished.results / "tables/axes.parquet")
    axes = axes[axes["seed"] == -1].set_index(["encoder", "dataset"])
    clean = cases[cases["condition"] == "clean"].set_index(["encoder", "dataset"])
    assert len(clean) == 3 * 2
    assert clean["macro_auroc"].to_numpy() == pytest.approx(
        axes["macro_auroc"][clean.index].to_numpy(), abs=1e-6
    )
    external = cases[cases["condition"] == "foreign"]
    assert set(external["dataset"]) == {"chest"}
    sure = cases[cases["missing"].isna()]
    assert (sure["low"] <= sure["macro_auroc"]).all()
    assert (sure["macro_auroc"] <= sure["high"]).all()
    assert cases.loc[cases["missing"].notna(), ["low", "high"]].isna().all().all()


def test_nothing_is_left_under_a_temporary_name(finished: Project) -> None:
    assert not list(finished.results.rglob("*.part"))


def test_a_second_run_has_nothing_to_do(project: Project) -> None:
    ended = project.run()
    assert ended.returncode == 0
    assert "Nothing to be done" in ended.stdout + ended.stderr


def test_tables_have_the_same_bytes_on_one_core_and_for_shuffled_rows(
    untouched: Project, finished: Project, tmp_path: Path
) -> None:
    other = untouched.copy(tmp_path / "other")
    table = other.folder / "data/tints/table.csv"
    header, *rows = table.read_text().splitlines()
    random.Random(1).shuffle(rows)
    table.write_text("\n".join([header, *rows]) + "\n")
    ended = other.run("--quiet", "rules", cores=1)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert other.tables() == finished.tables()


def test_a_killed_run_ends_in_the_same_bytes(
    untouched: Project, finished: Project, tmp_path: Path
) -> None:
    other = untouched.copy(tmp_path / "killed")
    other.edit("config", lambda config: config.update(encoders=["means"], datasets=["tints"]))
    process = subprocess.Popen(
        [*snakemake_command(), "--cores", "2", "--configfile", "config.yaml", "--", "runs"],
        cwd=other.folder,
        env={**os.environ, "PYTHONPATH": str(other.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list(other.results.glob("runs/**/*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert other.run("--unlock").returncode == 0
    ended = other.run("--quiet", "rules", "--", "runs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made = [
        path
        for path in other.results.rglob("*.*")
        if "logs" not in path.parts and path.name != "images.cache.jsonl"  # keyed by file times
    ]
    # image scan, manifest, test set, 2 splits, 4 features, 4 probes, 16 runs
    assert len(made) == 29
    for path in made:
        base_model = finished.results / path.relative_to(other.results)
        assert path.read_bytes() == base_model.read_bytes(), path


def test_control_probes_are_fitted_for_all_cells_and_compared(project: Project) -> None:
    control = {
        "fractions": [10, 100],
        "device": "cpu",
        "cells_per_job": 4,
        "neighbours": {"k": 5, "metric": "cosine"},
        "perceptron": {
            **{"hidden": 4, "learning_rate": 0.01, "batch_rows": 64},
            **{"max_epochs": 5, "patience": 2},
        },
    }
    project.edit("config", lambda config: config.update(control_probes=control))
    ended = project.run("--quiet", "rules", "--", "results/studies/control_probes.parquet")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    runs = pd.read_parquet(project.results / "tables/runs.parquet")
    found = pd.read_parquet(project.results / "tables/control_runs.parquet")
    assert len(found) == 2 * len(runs)
    keys = ["encoder", "dataset", "seed", "condition", "percent"]
    for _, of_probe in found.groupby("probe"):
        assert of_probe[keys].reset_index(drop=True).equals(runs[keys])
        assert of_probe["n_test"].tolist() == runs["n_test"].tolist()
    neighbours = found[(found["probe"] == "neighbours") & (found["encoder"] == "means")]
    clean = neighbours[(neighbours["condition"] == "clean") & (neighbours["dataset"] == "tints")]
    assert (clean.loc[clean["percent"] == 100, "macro_auroc"] > 0.9).all()
    _, metadata = read_table(project.results / "studies/control_probes.parquet")
    assert metadata["sentence"].startswith("Not run: the panel has 2 ranked encoders")

    # In jobs of another size, for rows in another order: the same bytes.
    made = {path: path.read_bytes() for path in project.results.glob("control_probes/*/*.json")}
    assert len(made) == 6
    table = project.folder / "data/tints/table.csv"
    header, *rows = table.read_text().splitlines()
    random.Random(2).shuffle(rows)
    table.write_text("\n".join([header, *rows]) + "\n")
    wanted = "results/control_probes/means/tints.json"
    project.edit("config", lambda config: config["control_probes"].update(cells_per_job=1))
    (project.folder / wanted).unlink()
    assert project.run("--quiet", "rules", "--", wanted).returncode == 0
    assert (project.folder / wanted).read_bytes() == made[project.folder / wanted]


# --- partial runs -------------------------------------------------------------------------------


def test_a_deleted_run_asked_by_its_path_is_the_only_job(project: Project) -> None:
    file = Path("results/runs/means/tints/seed1/jpeg-2/frac010.json")
    before = (project.folder / file).read_bytes()
    (project.folder / file).unlink()
    assert planned(project.run("-n", "--", str(file))) == {"run": 1}
    assert project.run("--", str(file)).returncode == 0
    assert (project.folder / file).read_bytes() == before
    assert planned(project.run("-n", "--", str(file))) == {}


def test_runs_made_in_batches_are_those_of_one_run(project: Project) -> None:
    before = {file: file.read_bytes() for file in project.results.glob("runs/**/*.json")}
    table = project.results / "tables/runs.parquet"
    before[table] = table.read_bytes()
    shutil.rmtree(project.results / "runs")
    table.unlink()
    for batch, there in (("1/2", range(1, len(before) - 1)), ("2/2", [len(before) - 1])):
        ended = project.run("--batch", f"runs_table={batch}", "--", "results/tables/runs.parquet")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert len(list(project.results.glob("runs/**/*.json"))) in there
    assert {file: file.read_bytes() for file in before} == before


def test_a_new_encoder_reruns_no_existing_cell(project: Project) -> None:
    project.edit("encoders", lambda registry: registry.update(more=own_encoder("spread")))
    project.edit("config", lambda config: config["encoders"].append("more"))
    ended = project.run("-n", "--quiet", "host")
    assert planned(ended) == {
        **{"features": 2, "shift_features": 1, "probes": 4},
        **{"run": 2 * 2 * (4 + 4), "shift_run": 2 * 2},
        **{"kept_predictions": 2 * 2, "runs_table": 1, "score_tables": 1, "studies_of_tables": 1},
        **{"recalibrate": 2, "studies_of_recalibrated_cells": 1},
        **{
            "studies_of_kept_predictions": 1,
            "studies_of_features": 1,
            "reproduction": 1,
            "case_bootstrap": 1,
            "report": 1,
            "all": 1,
        },
    }
    encoders = set(re.findall(r"encoder=(\w+)", ended.stdout))
    assert encoders == {"more"}


def test_a_changed_encoder_reruns_its_own_cells_only(project: Project) -> None:
    project.edit("encoders", lambda registry: registry["spread"]["preprocessing"].update(size=17))
    ended = project.run("-n", "--quiet", "host")
    assert planned(ended)["features"] == 2
    assert planned(ended)["run"] == 2 * 2 * (4 + 4)
    assert planned(ended)["shift_run"] == 2 * 2
    assert set(re.findall(r"encoder=(\w+)", ended.stdout)) == {"spread"}


def test_a_changed_c_grid_reruns_probes_and_what_depends_on_them(project: Project) -> None:
    project.edit("config", lambda config: config["probe"].update(c_grid=[0.01, 1.0]))
    jobs = planned(project.run("-n"))
    assert jobs["probes"] == 3 * 2 * 2
    assert "features" not in jobs
    assert "manifest" not in jobs


def test_changed_anchors_rerun_the_scores_only(project: Project, home: Path) -> None:
    scoring = project.folder / "scoring.yaml"
    text = (home / "config/scoring.yaml").read_text("utf-8")
    scoring.write_text(text.replace("zero: 0.30", "zero: 0.25"), "utf-8")
    project.edit("config", lambda config: config.update(scoring=str(scoring)))
    made_from_scores = ("score_tables", "studies_of_tables", "reproduction")
    made_from_scores += ("studies_of_kept_predictions", "studies_of_features")
    made_from_scores += ("report", "all")
    assert planned(project.run("-n")) == dict.fromkeys(made_from_scores, 1)


def test_what_says_nothing_about_a_result_reruns_nothing(project: Project) -> None:
    (project.folder / "data").rename(project.folder / "moved data")
    project.edit("config", lambda config: config.update(data_root="moved data"))
    touched = ["moved data/tints/table.csv", "moved data/tints/3.png", "own_encoders.py"]
    for name in touched:
        os.utime(project.folder / name)
    assert planned(project.run("-n")) == {}


def test_a_table_with_other_content_is_read_again(project: Project) -> None:
    table = project.folder / "data/tints/table.csv"
    times = table.stat().st_atime_ns, table.stat().st_mtime_ns
    table.write_text(table.read_text("utf-8").replace("p1\n", "p2\n"), "utf-8")
    os.utime(table, ns=times)
    jobs = planned(project.run("-n"))
    assert jobs["manifest"] == 1
    assert (jobs["features"], jobs["shift_features"]) == (3, 0)


UNTOUCHED = {"manifest", "test_set", "split", "features", "probes", "run", "shift_run"}


@pytest.mark.parametrize(
    ("file", "change", "again", "kept"),
    [
        (
            "encoders",
            lambda registry: registry["means"].update(title="Another title", licence="CC0"),
            {"report"},
            {*UNTOUCHED, "score_tables"},
        ),
        (
            "config",
            lambda config: config["bootstrap"].update(replicates=1001),
            {"score_tables", "report"},
            {*UNTOUCHED, "runs_table"},
        ),
        (
            "config",
            lambda config: config["splits"].update(calibration=0.2),
            {"split", "probes", "run"},
            {"manifest", "test_set", "features", "shift_features"},
        ),
        (
            "config",
            lambda config: config["perturbations"].update(jpeg=[50, 11]),
            {"features", "probes", "run"},
            {"manifest", "test_set", "split", "shift_features"},
        ),
    ],
    ids=["title", "bootstrap", "calibration", "perturbation"],
)
def test_a_changed_value_reruns_what_depends_on_it(
    project: Project,
    file: str,
    change: Callable[[dict[str, Any]], None],
    again: set[str],
    kept: set[str],
) -> None:
    project.edit(file, change)
    jobs = set(planned(project.run("-n")))
    assert again <= jobs
    assert not kept & jobs


def test_a_new_seed_extracts_nothing_again(project: Project) -> None:
    project.edit("config", lambda config: config["seeds"].append(7))
    jobs = planned(project.run("-n"))
    assert "features" not in jobs
    assert (jobs["split"], jobs["probes"]) == (2, 6)
    assert (jobs["run"], jobs["shift_run"]) == (3 * 2 * (4 + 4), 3 * 2)


def test_the_published_grid_is_planned_without_any_data(
    snakemake: Snakemake, tmp_path: Path
) -> None:
    ended = snakemake("-n", "--cores", "1", "--quiet", "rules", cwd=tmp_path)
    jobs = planned(ended)
    assert jobs["run"] + jobs["shift_run"] == 17575
    assert jobs["shift_run"] == 15 * 5 * 5
    assert jobs["features"] == 43
    assert jobs["shift_features"] == 15
    assert jobs["probes"] == 43 * 5
    # On a cluster hundreds of jobs are submitted, the rest is worked off by the main process.
    _, local = rules_of_workflow()
    assert 250 < sum(jobs[rule] for rule in jobs if rule not in local) < 1000
    assert not list(tmp_path.glob("results/*"))


def test_a_frozen_reference_scores_as_before_and_is_never_replaced(
    project: Project, home: Path
) -> None:
    frozen = project.folder / "reference/demo.json"
    before = pd.read_parquet(project.results / "tables/crs.parquet")
    ended = project.run("--quiet", "rules", "--", "freeze_reference")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    content = frozen.read_bytes()
    project.edit("config", lambda config: config.update(reference="reference/demo.json"))
    ended = project.run("--quiet", "rules", "--", "crs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    after = pd.read_parquet(project.results / "tables/crs.parquet")
    assert set(after["reference"]) == {"demo"}
    columns = [name for name in before if name not in ("reference", "tier")]
    pd.testing.assert_frame_equal(after[columns], before[columns], check_exact=True)
    scoring = project.folder / "scoring.yaml"
    text = (home / "config/scoring.yaml").read_text("utf-8")
    scoring.write_text(text.replace("zero: 0.30", "zero: 0.25"), "utf-8")
    project.edit("config", lambda config: config.update(scoring=str(scoring)))
    refused(project.run("--", "crs"), r"axes\.calibration\.zero is 0\.25 .* 0\.3 in the frozen")
    project.edit("config", lambda config: config.update(reference=None))
    refused(project.run("--", "freeze_reference"), "is a frozen reference with other content")
    assert frozen.read_bytes() == content


# --- what a user can get wrong ------------------------------------------------------------------


def test_a_misspelt_key_ends_in_one_sentence(untouched: Project, tmp_path: Path) -> None:
    other = untouched.copy(tmp_path / "other")
    other.edit("config", lambda config: config.update(seedz=[1]))
    refused(
        other.run("-n"), r"the config: unknown key 'seedz' in the top level \(did you mean 'seeds'"
    )


def test_slips_of_the_command_line_end_in_one_sentence(untouched: Project, tmp_path: Path) -> None:
    refused(
        untouched.run("-n", "--", "studyes"), r"No rule has the name 'studyes' \(did you mean 'stud"
    )
    refused(
        untouched.run("-n", "--", "results/data/tint/manifest.parquet"), r"did you mean '.*/tints/"
    )
    refused(untouched.run("-n", "--config", "seeds=[0.0]"), r"seeds.0 is 0.0; .*: write 0")
    assert untouched.run("-n", "--config", "seeds=[0]", "fractions=[50, 100]").returncode == 0
    twice = untouched.copy(tmp_path / "twice")
    with (twice.folder / "config.yaml").open("a") as config:
        config.write("\nseeds: [5]\n")
    refused(twice.run("-n"), r"the key 'seeds' stands there twice")


def test_the_workflow_is_planned_as_a_module_of_another(
    untouched: Project, home: Path, tmp_path: Path
) -> None:
    importer = untouched.copy(tmp_path / "importer")
    (importer.folder / "Snakefile").write_text(
        'configfile: "config.yaml"\n'
        f'module crs:\n    snakefile: "{home}/Snakefile"\n    config: config\n'
        "use rule * from crs as crs_*\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--quiet", "--", "crs_all"],
        cwd=importer.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_audits_print_their_summary(project: Project) -> None:
    ended = project.run("--", "audits")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout + ended.stderr
    assert re.search(
        r"^tints: [\d,]+ images in [\d,]+ groups, \d classes; 0 groups on two", said, re.M
    )
    assert "to read: results/data/tints/audit.md" in said
    assert (project.folder / "results/data/tints/audit.md").is_file()


def test_an_unknown_encoder_ends_in_one_sentence(untouched: Project, tmp_path: Path) -> None:
    other = untouched.copy(tmp_path / "other")
    other.edit("config", lambda config: config.update(encoders=["mean"]))
    refused(other.run("-n"), r"Unknown encoder 'mean' \(did you mean 'means'\?\)")


def test_a_missing_image_root_ends_in_one_sentence(untouched: Project, tmp_path: Path) -> None:
    other = untouched.copy(tmp_path / "other")
    shutil.rmtree(other.folder / "data")
    manifest = "results/data/tints/manifest.parquet"
    refused(other.run("--", manifest), r"crsbench: The image root data/tints is not a folder")
    assert not (other.folder / manifest).exists()


def test_an_unreadable_image_ends_in_one_sentence_before_any_encoder_runs(
    untouched: Project, tmp_path: Path
) -> None:
    other = untouched.copy(tmp_path / "other")
    (other.folder / "data/tints/5.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    target = "results/features/means/tints/clean.arrow"
    refused(other.run("--", target), "'tints': 1 of 90 images are missing or damaged, the first is")
    assert not list(other.results.glob("features/**/*.arrow"))
    assert not list(other.results.rglob("*.part"))


def test_non_finite_features_end_in_one_sentence(project: Project) -> None:
    project.edit("config", lambda config: config.update(encoders=["broken"]))
    target = "results/features/broken/tints/clean.arrow"
    refused(project.run("--", target), "'broken' gave a non-finite feature for image 't000' under")
    log = project.results / "logs/features/broken/tints.log"
    assert "non-finite feature for image 't000'" in log.read_text("utf-8")


def test_a_failed_encoder_does_not_block_the_score_of_the_others(project: Project) -> None:
    for name in ("tables/crs.parquet", "tables/runs.parquet"):
        (project.results / name).unlink()
    project.edit("config", lambda config: config["encoders"].append("broken"))
    ended = project.run("--", "crs")
    refused(ended, r"3 jobs failed; 0 of 46 steps were made")
    assert not (project.results / "tables/crs.parquet").exists()
    output = ended.stdout + ended.stderr
    assert "target  results/features/broken/tints/clean.arrow" in output
    assert re.search("cause   The encoder 'broken' gave a non-finite feature for image", output)
    assert "log     results/logs/features/broken/tints.log" in output
    command = next(line for line in output.splitlines() if "without=" in line)
    setting = shlex.split(command)[-1]
    assert setting.startswith("without={")
    ended = project.run("--config", setting, "--", "crs")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    crs = pd.read_parquet(project.results / "tables/crs.parquet")
    assert set(crs["encoder"]) == {"means", "spread", "floor"}
    target = "results/features/broken/tints/clean.arrow"
    only_there = f"without={json.dumps({'broken/tints': 'it has no tints'})}"
    refused(
        project.run("-n", "--config", only_there, "--", target),
        "The config leaves 'broken' out on 'tints'",
    )


def test_a_data_set_without_reader_says_that_it_can_only_be_planned(
    untouched: Project, tmp_path: Path
) -> None:
    other = untouched.copy(tmp_path / "other")
    other.edit("datasets", lambda registry: [registry["tints"].pop(key) for key in NEEDS_READER])
    target = "results/data/tints/manifest.parquet"
    refused(other.run("--", target), "'tints' can be planned but not run: .* names no reader")


NEEDS_READER = ("reader", "root", "table", "columns")


def test_a_damaged_probe_is_named_by_the_run_that_reads_it(project: Project) -> None:
    probe = project.results / "probes/means/tints/seed0/frac010.npz"
    stamp = probe.stat().st_mtime_ns
    probe.write_bytes(probe.read_bytes()[:200])
    os.utime(probe, ns=(stamp, stamp))
    target = "results/runs/means/tints/seed0/clean/frac010.json"
    (project.folder / target).unlink()
    refused(project.run("--", target), r"frac010\.npz is not whole")
    assert not (project.folder / target).exists()


def test_a_pair_that_the_panel_excludes_is_refused(untouched: Project, tmp_path: Path) -> None:
    other = untouched.copy(tmp_path / "other")
    other.edit("encoders", lambda r: r["means"].update(without_datasets=["tints"]))
    target = "results/features/means/tints/clean.arrow"
    refused(other.run("-n", "--", target), "The encoder 'means' has no cell on 'tints'")
