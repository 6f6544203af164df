"""What predicts the AUROC elsewhere: against scikit-learn, and at the edges of few encoders."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from crsbench.config.model import Config
from crsbench.studies.inputs import Inputs
from crsbench.studies.target_predictors import predicted_ranking, target_predictors
from worlds.studies import World


def alone(world: World) -> Inputs:
    """Inputs of a config without shift detection."""
    inputs = world.inputs()
    section = {**inputs.settings["studies"], "shift_detection": None}
    return inputs.having(settings={"studies": section})


@pytest.fixture(scope="module")
def world(published: Config) -> World:
    return World.of(published)


def test_error_and_rank_correlation_are_those_of_scikit_learn_and_scipy() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=12)
    y = 0.5 * x + 0.3 * random.normal(size=12)
    found = predicted_ranking(x, y)
    line = cross_val_predict(LinearRegression(), x[:, None], y, cv=LeaveOneOut())
    assert found["loo_error"] == pytest.approx(np.abs(y - line).mean())
    means = [np.delete(y, i).mean() for i in range(12)]
    assert found["loo_error_of_mean"] == pytest.approx(np.abs(y - means).mean())
    rho = spearmanr(x, y).statistic
    assert found["spearman_rho"] == pytest.approx(rho)
    without = [spearmanr(np.delete(x, i), np.delete(y, i)).statistic for i in range(12)]
    assert [found["loo_rho_min"], found["loo_rho_max"]] == pytest.approx(
        [min(without), max(without)]
    )
    half = 1.96 * np.sqrt((1 + rho**2 / 2) / 9)
    interval = np.tanh(np.arctanh(rho) + np.array([-half, half]))
    assert [found["low"], found["high"]] == pytest.approx(interval, abs=1e-4)


def test_a_perfect_and_a_constant_summary() -> None:
    y = np.array([0.6, 0.7, 0.75, 0.9])
    perfect = predicted_ranking(2 * y + 1, y)
    assert perfect["loo_error"] == pytest.approx(0, abs=1e-12)
    assert perfect["spearman_rho"] == pytest.approx(1)
    constant = predicted_ranking(np.ones(4), y)
    assert np.isnan([constant["spearman_rho"], constant["loo_rho_min"], constant["low"]]).all()
    assert constant["loo_error"] == pytest.approx(constant["loo_error_of_mean"])
    assert np.isnan(predicted_ranking(np.array([1.0, 3, 2]), y[:3])["low"])  # n − 3 = 0


def test_every_summary_stands_on_the_same_footing(world: World) -> None:
    study = target_predictors(alone(world))
    assert list(study.table) == list(target_predictors.columns)
    assert study.table["n_encoders"].nunique() == 1
    assert {"auroc", "crs_without_shift", "axis_robustness", "worst_condition_auroc"} <= set(
        study.table["predictor"]
    )
    assert "picked with hindsight" in study.sentence  # fifteen encoders
    pair = study.table.iloc[0]
    key = f"{pair['dataset']}.{pair['target']}.auroc.spearman_rho"
    rows = study.table.set_index("predictor")
    assert study.findings[key] == rows.loc["auroc", "spearman_rho"]
    # The same two correlations as in the published comparison.
    from crsbench.studies.external_validity import external_validity

    published = external_validity(world.inputs()).findings
    start = f"{pair['dataset']}.{pair['target']}"
    assert rows.loc["auroc", "spearman_rho"] == pytest.approx(
        published[f"{start}.spearman_source_auroc_vs_target_auroc"]
    )
    assert rows.loc["crs_without_shift", "spearman_rho"] == pytest.approx(
        published[f"{start}.spearman_crs_vs_target_auroc"]
    )


def test_no_target_or_two_encoders_are_not_run(world: World) -> None:
    one_set = world.only(list(world.encoders), ["isic2019"])
    assert target_predictors(alone(one_set)).sentence.startswith("Not run: no data set")
    few = world.only(["clip", "mae"])
    assert "fewer than three" in target_predictors(alone(few)).sentence
