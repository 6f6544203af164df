"""Calibrators: known truth, independent implementations, and the edges that real sets have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from abstention.calibration import VectorScaling as AbstentionVectorScaling
from betacal import BetaCalibration
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from crsbench.calibration import METHODS
from crsbench.calibration.calibrators import (
    CALIBRATORS,
    Calibrator,
    DirichletScaling,
    IsotonicScaling,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
    logits_of,
)
from crsbench.calibration.likelihood import (
    RIDGE,
    DirichletLikelihood,
    binary_objective,
    minimise,
    sigmoid,
    softmax,
    vector_objective,
)
from crsbench.calibration.selection import brier_by_method, least, out_of_fold
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.metrics.calibration_error import multiclass_ece, reliability_bins
from crsbench.metrics.discrimination import auroc_per_class
from crsbench.metrics.proper_scores import brier_score
from crsbench.probes.folds import folds_per_problem

TASKS = ("multiclass", "multilabel")


def drawn(probabilities: np.ndarray, seed: int) -> np.ndarray:
    """One-hot truth (n, K) that these probabilities describe perfectly."""
    uniform = np.random.default_rng(seed).random((len(probabilities), 1))
    return np.eye(probabilities.shape[1], dtype=np.int64)[
        (probabilities.cumsum(axis=1) < uniform).sum(axis=1).clip(max=probabilities.shape[1] - 1)
    ]


def class_case(n: int, k: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, K) and truth that they describe perfectly."""
    logits = np.random.default_rng(seed).normal(size=(n, k)) * 2
    logits -= logits.mean(axis=1, keepdims=True)
    return logits, drawn(softmax(logits), seed + 1)


def label_case(n: int, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = random.normal(-1, 1.5, size=(n, k))
    return logits, (random.random((n, k)) < sigmoid(logits)).astype(np.int64)


def case(task: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n, K) that are too sure of themselves by a factor of two, and truth."""
    logits, truth = (class_case if task == "multiclass" else label_case)(n, seed=seed)
    return (softmax if task == "multiclass" else sigmoid)(2 * logits), truth


def in_proportion(logits: np.ndarray, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row of logits (m, K) `copies` times, with outcomes in the proportion of its softmax."""
    rows, truth = [], []
    for row, shares in zip(logits, softmax(logits) * copies, strict=True):
        counts = np.floor(shares).astype(int)
        counts[np.argsort(counts - shares)[: copies - counts.sum()]] += 1
        rows.append(np.repeat(row[None], copies, axis=0))
        truth.append(np.repeat(np.eye(len(row), dtype=int), counts, axis=0))
    return np.concatenate(rows), np.concatenate(truth)


# --- known truth ---------------------------------------------------------------------------------


def test_a_temperature_of_2_5_is_found_among_20000_overconfident_logits() -> None:
    logits, truth = in_proportion(class_case(40)[0], copies=500)
    assert len(logits) == 20_000
    found = TemperatureScaling().fit(2.5 * logits, truth)
    assert found.temperature_ == pytest.approx([2.5], abs=1e-2)
    # Outcomes that are drawn move it by their own chance: a standard error of 0.024.
    logits, truth = class_case(20_000)
    found = TemperatureScaling().fit(2.5 * logits, truth)
    assert found.temperature_ == pytest.approx([2.5], abs=3 * 0.024)
    assert not found.at_bound_.any()


def test_each_label_has_a_temperature_of_its_own() -> None:
    grid = np.linspace(-4, 3, 40)
    logits, truth = in_proportion(np.stack([np.zeros(40), grid], axis=1), copies=500)
    z, y = logits[:, 1], truth[:, 1]
    found = TemperatureScaling("multilabel").fit(
        np.stack([2.5 * z, z / 2], axis=1), y[:, None][:, [0, 0]]
    )
    assert found.temperature_ == pytest.approx([2.5, 0.5], abs=1e-2)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_calibrated_inputs_are_left_alone_within_noise(task: str, name: str) -> None:
    logits, truth = (class_case if task == "multiclass" else label_case)(4000)
    probabilities = (softmax if task == "multiclass" else sigmoid)(logits)
    made = CALIBRATORS[name](task).fit_probabilities(probabilities, truth)
    moved = np.abs(made.recalibrate(probabilities) - probabilities)
    assert moved.mean() < (0.03 if name == "isotonic" else 0.012)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_overconfidence_is_repaired_on_new_cases(task: str, name: str) -> None:
    made = CALIBRATORS[name](task).fit_probabilities(*case(task, 3000))
    probabilities, truth = case(task, 6000, seed=7)
    repaired = made.recalibrate(probabilities)
    if task == "multiclass":
        before, after = (multiclass_ece(truth, p) for p in (probabilities, repaired))
        assert repaired.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    else:
        before, after = (
            reliability_bins(p, truth).error().mean() for p in (probabilities, repaired)
        )
    assert after < 0.35 * before
    assert ((repaired >= 0) & (repaired <= 1)).all()


def test_dirichlet_recovers_a_known_linear_map() -> None:
    """ln p' = W ln p + b up to a constant of each case; columns of W are known up to a shift."""
    random = np.random.default_rng(3)
    p = random.dirichlet(np.full(3, 1.5), 20_000)
    weight = np.array([[0.6, 0.1, -0.1], [0.0, 0.8, 0.2], [-0.2, 0.0, 0.5]])
    intercept = np.array([0.4, -0.3, -0.1])
    true = softmax(np.log(p) @ weight.T + intercept)

    # Exact frequencies for outcomes and no penalty: the map itself.
    likelihood = DirichletLikelihood(np.log(p), true)
    exact = minimise(likelihood.penalised(0.0, 0.0), likelihood.identity).reshape(3, 4)
    assert centred(exact[:, :3]) == pytest.approx(centred(weight), abs=1e-4)
    assert centred(exact[:, 3]) == pytest.approx(intercept, abs=1e-4)

    # Drawn outcomes and chosen penalties: to within chance.
    made = DirichletScaling().fit(p, drawn(true, 5))
    assert centred(made.weight_) == pytest.approx(centred(weight), abs=0.06)
    assert centred(made.intercept_) == pytest.approx(intercept, abs=0.12)
    assert np.abs(made.predict_proba(p) - true).mean() < 0.006


def centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=0)


# --- independent implementations -----------------------------------------------------------------


def test_vector_scaling_is_that_of_abstention() -> None:
    probabilities, truth = case("multiclass", 1500)
    logits = logits_of(probabilities, "multiclass")
    theirs = AbstentionVectorScaling()(logits, truth)(logits)
    ours = VectorScaling().fit(logits, truth).predict_proba(logits)
    assert ours == pytest.approx(theirs, abs=1e-3)  # they stop at 1e-7 of the loss


@pytest.mark.parametrize("seed", range(3))
def test_beta_calibration_is_that_of_betacal(seed: int) -> None:
    """Where its sign constraint is idle and the intercept penalty is weak."""
    probabilities, truth = case("multilabel", 3000, seed)
    ours = DirichletScaling("multilabel").fit(probabilities, truth)
    for k in range(3):
        theirs = BetaCalibration("abm").fit(probabilities[:, k], truth[:, k])
        expected = theirs.predict(probabilities[:, k])
        weak = ours.intercept_penalty_[k] <= 1e-3
        tolerance = 2e-3 if weak else 2e-2
        assert ours.recalibrate(probabilities)[:, k] == pytest.approx(expected, abs=tolerance)


def test_unpenalised_dirichlet_is_logistic_regression_on_log_probabilities() -> None:
    probabilities, truth = case("multiclass", 1500)
    logs = np.log(probabilities)
    theirs = LogisticRegression(C=1e6, tol=1e-10, max_iter=5000).fit(logs, truth.argmax(axis=1))
    likelihood = DirichletLikelihood(logs, truth.astype(float))
    theta = minimise(likelihood.penalised(0.0, 0.0), likelihood.identity).reshape(4, 5)
    ours = softmax(logs @ theta[:, :4].T + theta[:, 4])
    assert ours == pytest.approx(theirs.predict_proba(logs), abs=2e-4)


@pytest.mark.parametrize("penalties", [(0.3, 0.02), (10.0, 1.0)])
def test_dirichlet_is_the_slow_optimum_of_its_published_objective(
    penalties: tuple[float, float],
) -> None:
    probabilities, truth = case("multiclass", 200)
    logs, n = np.log(probabilities), 200

    def published(theta: np.ndarray) -> float:  # Kull et al. 2019: mean log-loss + ODIR
        weight, b = theta.reshape(4, 5)[:, :4], theta.reshape(4, 5)[:, 4]
        loss = -(log_softmax(logs @ weight.T + b, axis=1) * truth).sum() / n
        off = (weight**2).sum() - (np.diag(weight) ** 2).sum()
        odir = penalties[0] * off / (4 * 3) + penalties[1] * (b**2).sum() / 4
        ridge = RIDGE / (2 * n) * ((weight - np.eye(4)) ** 2).sum() + RIDGE / (2 * n) * (b**2).sum()
        return loss + odir + ridge

    likelihood = DirichletLikelihood(logs, truth.astype(float))
    ours = minimise(likelihood.penalised(*penalties), likelihood.identity)
    slow = minimize(published, likelihood.identity, method="BFGS", options={"gtol": 1e-9})
    assert published(ours) <= slow.fun + 1e-12
    assert ours == pytest.approx(slow.x, abs=1e-4)
    assert n * published(ours) == pytest.approx(likelihood.penalised(*penalties)(ours)[0], abs=1e-9)


def test_gradients_and_hessians_are_those_of_finite_differences() -> None:
    probabilities, truth = case("multiclass", 40)
    logits, y = logits_of(probabilities, "multiclass"), truth.astype(float)
    random = np.random.default_rng(0)
    design = random.normal(size=(40, 3))
    objectives = [
        (vector_objective(logits, y), 8),
        (DirichletLikelihood(np.log(probabilities), y).penalised(0.1, 0.2), 20),
        (binary_objective(design, y[:, 0], np.array([1.0, 1, 0]), np.array([0.1, 0, 2])), 3),
    ]
    for objective, size in objectives:
        theta = random.normal(size=size) * 0.3
        _, gradient, hessian = objective(theta)
        for i in range(size):
            step = np.zeros(size)
            step[i] = 1e-5
            up, down = objective(theta + step), objective(theta - step)
            assert (up[0] - down[0]) / 2e-5 == pytest.approx(gradient[i], abs=1e-5)
            assert (up[1] - down[1]) / 2e-5 == pytest.approx(hessian[i], abs=1e-4)


def test_isotonic_is_scikit_learns_for_each_class() -> None:
    probabilities, truth = case("multiclass", 400)
    probabilities = np.round(probabilities, 2)  # ties
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    new, _ = case("multiclass", 300, seed=9)
    expected = np.stack(
        [
            IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1)
            .fit(probabilities[:, k], truth[:, k])
            .predict(new[:, k])
            for k in range(4)
        ],
        axis=1,
    )
    made = IsotonicScaling().fit(probabilities, truth)
    assert made.predict_proba(new) == pytest.approx(
        expected / expected.sum(axis=1, keepdims=True), abs=1e-12
    )
    labels, label_truth = case("multilabel", 400)
    ours = IsotonicScaling("multilabel").fit(labels, label_truth).predict_proba(labels)
    for k in range(3):
        theirs = IsotonicRegression(out_of_bounds="clip").fit(labels[:, k], label_truth[:, k])
        assert ours[:, k] == pytest.approx(theirs.predict(labels[:, k]), abs=1e-12)


def test_logits_give_their_probabilities_back() -> None:
    for task, squash in (("multiclass", softmax), ("multilabel", sigmoid)):
        probabilities, _ = case(task, 300)
        assert squash(logits_of(probabilities, task)) == pytest.approx(probabilities, abs=1e-12)
    sure = logits_of([[0.0, 1.0], [1.0, 0.0]], "multilabel")
    assert np.abs(sure).max() == pytest.approx(36.04, abs=0.01)
    assert np.isfinite(logits_of([[0.0, 1.0, 0.0]], "multiclass")).all()


# --- AUROC ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 20))
def test_temperature_leaves_auroc_exactly_as_it_is(seed: int, sharpness: float) -> None:
    logits, truth = label_case(60, seed=seed)
    made = TemperatureScaling("multilabel").fit(sharpness * logits, truth)
    after = made.predict_proba(sharpness * logits)
    before = auroc_per_class(truth, logits)
    if np.abs(sharpness * logits / made.temperature_).max() < 30:  # nothing rounds to 0 or 1
        np.testing.assert_array_equal(auroc_per_class(truth, after), before)
    two = np.stack([np.zeros(60), logits[:, 0]], axis=1)
    onehot = np.stack([1 - truth[:, 0], truth[:, 0]], axis=1)
    binary = TemperatureScaling().fit(two, onehot).predict_proba(two)
    np.testing.assert_array_equal(
        auroc_per_class(onehot, binary)[1], auroc_per_class(onehot, two)[1]
    )


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_the_calibration_set_lacks_stays_possible(name: str) -> None:
    probabilities, truth = case("multiclass", 300)
    rows = truth[:, 2] == 0
    made = CALIBRATORS[name]().fit_probabilities(probabilities[rows], truth[rows])
    assert made.lacking_.tolist() == [2]
    repaired = made.recalibrate(probabilities)
    assert np.isfinite(repaired).all()
    assert repaired.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert (repaired[:, 2] > 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_label_without_positives_stays_as_it_was(name: str) -> None:
    probabilities, truth = case("multilabel", 200)
    truth[:, 1] = 0
    truth[:, 2] = -1
    made = CALIBRATORS[name]("multilabel").fit_probabilities(probabilities, truth)
    assert made.lacking_.tolist() == [1, 2]
    repaired = made.recalibrate(probabilities)
    assert repaired[:, 1:] == pytest.approx(probabilities[:, 1:], abs=1e-12)
    assert not np.allclose(repaired[:, 0], probabilities[:, 0])


@pytest.mark.parametrize("name", METHODS)
def test_unknown_labels_count_for_nothing(name: str) -> None:
    probabilities, truth = case("multilabel", 240)
    unknown = np.random.default_rng(1).random(240) < 0.4
    truth[unknown, 1] = -1
    whole = CALIBRATORS[name]("multilabel").fit_probabilities(probabilities, truth)
    known = CALIBRATORS[name]("multilabel").fit_probabilities(
        probabilities[~unknown][:, [1]], truth[~unknown][:, [1]], np.arange(240)[~unknown]
    )
    assert whole.recalibrate(probabilities)[:, [1]] == pytest.approx(
        known.recalibrate(probabilities[:, [1]]), abs=1e-9
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["constant", "ties", "zero and one", "one case", "separable"])
def test_edges_give_finite_probabilities(kind: str, task: str, name: str) -> None:
    probabilities, truth = case(task, 60)
    if kind == "constant":
        probabilities[:] = 1 / probabilities.shape[1]
    elif kind == "ties":
        probabilities = np.where(probabilities > 0.5, 0.7, 0.1)
        if task == "multiclass":
            probabilities /= probabilities.sum(axis=1, keepdims=True)
    elif kind == "zero and one":
        probabilities = np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)]
    elif kind == "one case":
        probabilities, truth = probabilities[:1], truth[:1]
    else:
        probabilities = np.where(truth == 1, 0.9, 0.02)
        if task == "multiclass":
            probabilities /= probabilities.sum(axis=1, keepdims=True)
    made = CALIBRATORS[name](task).fit_probabilities(probabilities, truth)
    repaired = made.recalibrate(probabilities)
    assert ((repaired >= 0) & (repaired <= 1)).all()
    if task == "multiclass":
        assert repaired.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    if kind == "constant" and name in ("vector", "isotonic", "dirichlet"):
        assert repaired[0] == pytest.approx(truth.mean(axis=0), abs=0.02)


def test_constant_scores_have_the_temperature_one() -> None:
    _, truth = class_case(50)
    assert TemperatureScaling().fit(np.full((50, 4), 3.0), truth).temperature_ == [1.0]


def test_a_perfectly_separated_set_ends_at_the_bound_and_says_so() -> None:
    truth = np.eye(3, dtype=int)[np.arange(30) % 3]
    made = TemperatureScaling().fit(truth * 2.0 - 0.5, truth)
    assert made.temperature_ == pytest.approx([0.01])
    assert made.at_bound_.all()


def test_a_row_that_isotonic_gives_nothing_stays_as_it_was() -> None:
    low, high = [0.1, 0.2, 0.7], [0.7, 0.2, 0.1]
    probabilities = np.array([low, high, low, high, [0.2, 0.6, 0.2], [0.3, 0.5, 0.2]])
    truth = np.eye(3, dtype=int)[[2, 0, 2, 0, 1, 1]]
    made = IsotonicScaling().fit(probabilities, truth)
    row = np.array([[0.34, 0.33, 0.33]])  # below every class's lowest positive
    mass = sum(np.interp(row[0, k], *made.thresholds_[k]) for k in range(3))
    expected = row if mass == 0 else made.predict_proba(row)
    assert made.predict_proba(row) == pytest.approx(expected)
    assert made.predict_proba(np.array([[0.3, 0.4, 0.3]])).sum() == pytest.approx(1.0)


# --- the contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_refitting_gives_equal_parameters(task: str, name: str) -> None:
    probabilities, truth = case(task, 300)
    groups = np.arange(300) // 2
    made = CALIBRATORS[name](task)
    first = saved_text(made.fit_probabilities(probabilities, truth, groups))
    assert saved_text(made.fit_probabilities(probabilities, truth, groups)) == first
    assert (
        saved_text(CALIBRATORS[name](task).fit_probabilities(probabilities, truth, groups)) == first
    )


def saved_text(calibrator: Calibrator) -> str:
    return json.dumps(
        {
            name: [np.asarray(part).tolist() for part in getattr(calibrator, name)]
            if name != "thresholds_"
            else [[axis.tolist() for axis in pair] for pair in calibrator.thresholds_]
            for name in calibrator.arrays
        }
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_a_saved_calibrator_says_the_same_to_the_last_bit(
    task: str, name: str, tmp_path: Path
) -> None:
    probabilities, truth = case(task, 200)
    made = CALIBRATORS[name](task).fit_probabilities(probabilities, truth)
    made.save(tmp_path / "c.json", [f"c{k}" for k in range(probabilities.shape[1])])
    read = load_calibrator(tmp_path / "c.json")
    np.testing.assert_array_equal(read.recalibrate(probabilities), made.recalibrate(probabilities))
    assert type(read) is type(made)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("fitted"),
        lambda content: content.update(method="magic"),
        lambda content: content.update(format="another"),
        lambda content: content["fitted"].update(weight_=[1.0]),
    ],
)
def test_a_damaged_calibrator_file_is_named(damage, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    VectorScaling().fit_probabilities(*case("multiclass", 50)).save(file)
    content = read_json(file)
    damage(content)
    write_json(file, content)
    with pytest.raises(UserError, match=r"c\.json is no saved calibrator"):
        load_calibrator(file)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_the_wrong_kind_of_input_is_refused(task: str, name: str) -> None:
    probabilities, truth = case(task, 60)
    logits = logits_of(probabilities, task)
    calibrator = CALIBRATORS[name](task)
    if calibrator.takes == "logits":
        wrong, message = probabilities, "takes logits, and these values are probabilities"
        right = logits
    else:
        wrong, message, right = logits, "takes probabilities, found values from", probabilities
    with pytest.raises(ValueError, match=message):
        calibrator.fit(wrong, truth)
    with pytest.raises(ValueError, match=message):
        calibrator.fit(right, truth).predict_proba(wrong)
    if task == "multiclass" and calibrator.takes == "probabilities":
        with pytest.raises(ValueError, match="rows sum to one"):
            calibrator.fit(np.full((60, 4), 0.5), truth)


def test_what_does_not_fit_together_is_refused() -> None:
    logits, truth = class_case(20)
    calibrator = TemperatureScaling()
    for values, labels, message in (
        (logits[:0], truth[:0], "at least one case"),
        (np.where(logits > 2, np.nan, logits), truth, "must be finite"),
        (logits[:, :1], truth[:, :1], "K ≥ 2"),
        (logits, truth[:, :3], "as the values are"),
        (logits, 2 * truth, "must hold only"),
        (logits, np.ones_like(truth), "one-hot"),
        (logits, np.full(20, 7), "class numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrator.fit(values, labels)
    with pytest.raises(ValueError, match="groups"):
        calibrator.fit(logits, truth, np.arange(3))
    with pytest.raises(ValueError, match="task must be"):
        TemperatureScaling("ordinal").fit(logits, truth)
    with pytest.raises(ValueError, match=r"\(n, 4\)"):
        calibrator.fit(logits, truth).predict_proba(logits[:, :3])


def test_class_numbers_are_as_good_as_one_hot_rows() -> None:
    logits, truth = class_case(80)
    numbers = VectorScaling().fit(logits, truth.argmax(axis=1))
    np.testing.assert_array_equal(numbers.weight_, VectorScaling().fit(logits, truth).weight_)


# --- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_out_of_fold_is_what_calibrators_say_that_were_fitted_without_the_fold(task: str) -> None:
    probabilities, truth = case(task, 120)
    groups = np.arange(120) // 3
    said = out_of_fold(task, probabilities, truth, groups)
    fold, n_folds = folds_per_problem(truth, truth >= 0, groups, task, 5)
    n_problems = 1 if task == "multiclass" else truth.shape[1]
    columns = [slice(None)] if task == "multiclass" else [[k] for k in range(n_problems)]
    for name in METHODS:
        for problem, of in enumerate(columns):
            p, y = probabilities[:, of], truth[:, of]
            for held_out in range(n_folds[problem]):
                test = fold[:, problem] == held_out
                assert not set(groups[test]) & set(groups[~test])
                made = CALIBRATORS[name](task)
                made.fit_probabilities(p[~test], y[~test], groups[~test])
                assert said[name][test][:, of] == pytest.approx(made.recalibrate(p[test]), abs=1e-9)
    np.testing.assert_array_equal(said["none"], probabilities)


def test_the_brier_score_is_that_of_the_metrics() -> None:
    for task in TASKS:
        probabilities, truth = case(task, 100)
        found = brier_by_method(task, {"none": probabilities}, truth)["none"]
        assert found == pytest.approx(brier_score(task, truth, probabilities), abs=1e-12)


def test_the_first_of_equal_scores_is_the_choice() -> None:
    assert least({"temperature": 0.2, "vector": 0.1, "isotonic": 0.1}) == "vector"


def test_a_set_without_folds_says_nothing_out_of_fold() -> None:
    probabilities, truth = case("multiclass", 12)
    said = out_of_fold("multiclass", probabilities, truth, np.zeros(12))
    for name in METHODS:
        np.testing.assert_array_equal(said[name], probabilities)
    made = DirichletScaling().fit(probabilities, truth, np.zeros(12))
    assert made.off_diagonal_penalty_ == [100.0]


# --- the level of chance -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 30, 200, 3000])
def test_the_level_of_perfect_calibration_is_that_of_simulation(n: int) -> None:
    random = np.random.default_rng(n)
    confidence = random.beta(2, 1, size=n)
    level = float(reliability_bins(confidence, np.zeros(n)).error_if_calibrated())
    simulated = [
        reliability_bins(confidence, random.random(n) < confidence).error() for _ in range(400)
    ]
    standard_error = np.std(simulated) / 20
    assert level == pytest.approx(np.mean(simulated), rel=0.02, abs=4 * standard_error)


def test_the_level_of_one_case_is_done_by_hand() -> None:
    # At p = 0.3: with 0.3 the gap is 0.7, with 0.7 it is 0.3.
    assert reliability_bins([0.3], [1]).error_if_calibrated() == pytest.approx(0.42)
    assert reliability_bins([0.0, 1.0], [0, 1]).error_if_calibrated() == 0.0
    by_label = reliability_bins([[0.3, 1.0]], [[1, 1]]).error_if_calibrated()
    assert by_label == pytest.approx([0.42, 0.0])
