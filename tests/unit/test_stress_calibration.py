"""Calibration under stress, from the table of runs: counts, means and silent failures by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from crsbench.config.model import Config
from crsbench.studies.inputs import Inputs
from crsbench.studies.stress_calibration import stress_calibration
from worlds.studies import World


@pytest.fixture(scope="module")
def inputs(published: Config) -> Inputs:
    return World.of(published).inputs()


def changed(inputs: Inputs, **columns: object) -> Inputs:
    return inputs.having(runs=inputs.runs.assign(**columns))


def test_43_cells_have_the_mean_and_the_peak_of_their_degraded_conditions(inputs: Inputs) -> None:
    study = stress_calibration(inputs)
    assert list(study.table) == list(stress_calibration.columns)
    assert len(study.table) == 43 * 15 + 15
    runs = inputs.runs.query("percent == 100 and encoder == 'llava_med' and dataset == 'aptos2019'")
    ece = runs.groupby("condition")["ece"].mean()
    degraded = ece.drop("clean")
    assert len(degraded) == 15
    cell = "aptos2019.llava_med"
    assert study.findings[f"mean_ece_increase.{cell}"] == pytest.approx(
        (degraded - ece["clean"]).mean()
    )
    assert study.findings[f"peak.{cell}"] == pytest.approx(degraded.max())
    assert study.findings[f"peak_increase.{cell}"] == pytest.approx((degraded - ece["clean"]).max())


def test_the_correlation_is_over_cells(inputs: Inputs) -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, len(inputs.runs))
    inputs = changed(inputs, ece=inputs.runs["ece"] + noise)
    found = stress_calibration(inputs).findings
    runs = inputs.runs.query("percent == 100")
    rows = []
    for _, of in runs.groupby(["encoder", "dataset"]):
        by = of[~of["condition"].isin(inputs.targets)].groupby("condition")[["macro_auroc", "ece"]]
        mean = by.mean()
        stressed = mean.drop("clean") - mean.loc["clean"]
        rows.append((-stressed["macro_auroc"].mean(), stressed["ece"].mean()))
    r = stats.pearsonr(*np.transpose(rows))
    assert found["correlation_auroc_loss_ece_loss.cells"] == len(rows) == 43
    assert found["correlation_auroc_loss_ece_loss.r"] == pytest.approx(r.statistic)
    assert found["correlation_auroc_loss_ece_loss.low"] == pytest.approx(
        r.confidence_interval().low
    )


def test_a_silent_failure_keeps_its_ranking_and_loses_its_calibration(inputs: Inputs) -> None:
    runs = inputs.runs.assign(macro_auroc=0.9, ece=0.05)
    full = (runs["percent"] == 100) & (runs["dataset"] == "isic2019")
    silent = full & (runs["encoder"] == "clip") & (runs["condition"] == "jpeg-3")
    loud = full & (runs["encoder"] == "mae") & (runs["condition"] == "jpeg-3")
    mild = full & (runs["encoder"] == "siglip") & (runs["condition"] == "jpeg-3")
    runs.loc[silent | loud, "ece"] = 0.2
    runs.loc[mild, "ece"] = 0.05 + 0.04  # below the threshold of 0.05
    runs.loc[loud, "macro_auroc"] = 0.85
    study = stress_calibration(inputs.having(runs=runs))
    found = study.table[study.table["silent"]]
    assert found[["encoder", "dataset", "condition"]].to_numpy().tolist() == [
        ["clip", "isic2019", "jpeg-3"]
    ]
    assert study.findings["silent_failures"] == study.findings["silent_cells"] == 1
    assert study.findings["conditions"] == 43 * 15 + 15
    limits = {"auroc_loss": 0.06, "ece_rise": 0.03}
    settings = {"studies": {**inputs.settings["studies"], "stress_calibration": limits}}
    wider = stress_calibration(inputs.having(runs=runs, settings=settings))
    assert wider.findings["silent_failures"] == 3


def test_elsewhere_the_loss_is_over_the_classes_that_both_sides_have(inputs: Inputs) -> None:
    elsewhere = inputs.runs["condition"] == "mimic"
    sides = {
        "source_macro_auroc": np.where(elsewhere, 0.8, np.nan),
        "target_macro_auroc": np.where(elsewhere, 0.7, np.nan),
    }
    rows = stress_calibration(changed(inputs, **sides)).table
    shift = rows[rows["kind"] == "shift"]
    assert len(shift) == 15
    assert shift["auroc_loss"].to_numpy() == pytest.approx(0.1)
    assert rows[rows["kind"] == "degraded"]["auroc_clean"].notna().all()


def test_an_undefined_auroc_leaves_its_cell_out_of_the_correlation_alone(inputs: Inputs) -> None:
    one = (inputs.runs["encoder"] == "clip") & (inputs.runs["condition"] == "jpeg-1")
    one &= (inputs.runs["dataset"] == "isic2019") & (inputs.runs["seed"] == 0)
    runs = inputs.runs.copy()
    runs.loc[one, "macro_auroc"] = np.nan
    study = stress_calibration(inputs.having(runs=runs))
    assert study.findings["correlation_auroc_loss_ece_loss.cells"] == 42
    row = study.table.query("encoder == 'clip' and dataset == 'isic2019' and condition == 'jpeg-1'")
    assert row["auroc_loss"].isna().all()
    assert not row["silent"].any()
    assert "mean_ece_increase.isic2019.clip" in study.findings


def test_two_cells_have_no_correlation(published: Config) -> None:
    two = World.of(published).only(["clip", "mae"], ["isic2019"]).inputs()
    study = stress_calibration(two)
    assert np.isnan(study.findings["correlation_auroc_loss_ece_loss.r"])
    assert study.findings["correlation_auroc_loss_ece_loss.cells"] == 2
    assert "correlate" not in study.sentence


def test_floors_and_a_run_without_stress_have_none(published: Config) -> None:
    world = World.of(published)
    floor = stress_calibration(world.with_floors(["mae"]).inputs())
    assert "mae" not in set(floor.table["encoder"])
    clean = world.inputs()
    only = clean.having(runs=clean.runs[clean.runs["condition"] == "clean"])
    study = stress_calibration(only)
    assert study.sentence.startswith("Not run: no ranked encoder has runs on degraded")
    assert not study.findings


def test_without_its_key_the_study_is_not_made(inputs: Inputs) -> None:
    assert stress_calibration.wanted(inputs.settings)
    section = {**inputs.settings["studies"]}
    del section["stress_calibration"]
    assert not stress_calibration.wanted({"studies": section})
