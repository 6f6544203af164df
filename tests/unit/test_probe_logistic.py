"""The path solver against scikit-learn, which has the same objective."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from crsbench.core.errors import UserError
from crsbench.probes import logistic
from crsbench.probes.logistic import LogisticPath

GRID = (1e-5, 1e-3, 1e-1, 10.0)


def objective(features, target, weights, coef, intercept, c):
    """scikit-learn's objective written out: binary for one row of coefficients, else softmax."""
    logits = features.astype(np.float64) @ coef.T + intercept
    if len(coef) == 1:
        losses = np.logaddexp(0.0, np.where(target == 1, -logits[:, 0], logits[:, 0]))
    else:
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(target)), target]
    return weights @ losses + (coef**2).sum() / (2 * c)


def sklearn_fit(features, target, weights, c):
    """Coefficients and intercepts over the classes that are present, and their objective."""
    model = LogisticRegression(C=c, tol=1e-9, max_iter=20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its line search may end at rounding, which is the aim
        model.fit(features.astype(np.float64), target, sample_weight=weights)
    position = np.searchsorted(model.classes_, target)
    return model, objective(features, position, weights, model.coef_, model.intercept_, c)


def one_hot(target, n_classes):
    return np.eye(n_classes, dtype=np.int8)[target]


def softmax(logits):
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def blobs(n, d, n_classes, seed, spread=1.0):
    """Gaussian classes, each with at least one member, the first about half of the rows."""
    rng = np.random.default_rng(seed)
    share = np.r_[0.5, np.full(n_classes - 1, 0.5 / (n_classes - 1))]
    target = np.r_[np.arange(n_classes), rng.choice(n_classes, n - n_classes, p=share)]
    centres = spread * rng.standard_normal((n_classes, d))
    return (rng.standard_normal((n, d)) + centres[target]).astype(np.float32), target


@st.composite
def problems(draw):
    """n below, at and above d; rare classes; separable, collinear and constant features."""
    n_classes = draw(st.sampled_from([2, 3, 5, 14]))
    n = draw(st.integers(n_classes, 60))
    d = draw(st.integers(1, 30))
    features, target = blobs(
        n, d, n_classes, draw(st.integers(0, 999)), draw(st.sampled_from([0.3, 3]))
    )
    if draw(st.booleans()):
        features[:, d // 2] = features[:, 0]
    if draw(st.booleans()):
        features[:, -1] = 3.0
    weights = np.ones(n)
    if draw(st.booleans()):
        weights = np.random.default_rng(n).uniform(0.1, 3.0, n)
    return features, target, weights, draw(st.sampled_from([1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4]))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(problems())
def test_multinomial_reaches_the_objective_of_scikit_learn(problem):
    features, target, weights, c = problem
    n_classes = target.max() + 1
    path = LogisticPath([c], "multiclass", tolerance=1e-10, max_iterations=5000)
    path.fit(features, one_hot(target, n_classes), weights)
    coef, intercept = path.coef_[0, 0], path.intercept_[0, 0]
    reference, least = sklearn_fit(features, target, weights, c)
    binary = n_classes == 2
    ours = objective(
        features,
        target,
        weights,
        coef[1:] - coef[:1] if binary else coef,
        intercept[1:] - intercept[:1] if binary else intercept,
        c,
    )
    assert path.converged_.all()
    assert path.objective_[0, 0, 0] == pytest.approx(ours, rel=1e-8)
    assert ours <= least * (1 + 1e-6)
    if ours == pytest.approx(least, rel=1e-8):
        np.testing.assert_allclose(
            softmax(features @ coef.T + intercept), reference.predict_proba(features), atol=2e-3
        )


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 99))
def test_each_label_reaches_the_objective_of_its_own_scikit_learn_fit(problem, seed):
    features, target, weights, c = problem
    truth = one_hot(target, target.max() + 1)  # every label has both values
    path = LogisticPath([c], "multilabel", tolerance=1e-10, max_iterations=5000)
    path.fit(features, truth, weights)
    for label in np.random.default_rng(seed).permutation(truth.shape[1])[:3]:
        coef, intercept = path.coef_[0, 0, label], path.intercept_[0, 0, label]
        ours = objective(features, truth[:, label], weights, coef[None], intercept, c)
        _, least = sklearn_fit(features, truth[:, label], weights, c)
        assert path.converged_[0, 0, label]
        assert path.objective_[0, 0, label] == pytest.approx(ours, rel=1e-8)
        assert ours <= least * (1 + 1e-6)


@pytest.mark.parametrize(("n", "d"), [(40, 12), (30, 90)])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_coefficients_equal_scikit_learns(n, d, task):
    features, target = blobs(n, d, 4, seed=3)
    truth = one_hot(target, 4)
    path = LogisticPath(GRID, task, tolerance=1e-13).fit(features, truth)
    for position, c in enumerate(GRID):
        if task == "multiclass":
            reference, _ = sklearn_fit(features, target, np.ones(n), c)
            expected, constant = reference.coef_, reference.intercept_
        else:
            fits = [sklearn_fit(features, column, np.ones(n), c)[0] for column in truth.T]
            expected = np.concatenate([fit.coef_ for fit in fits])
            constant = np.concatenate([fit.intercept_ for fit in fits])
        scale = np.abs(expected).max()
        np.testing.assert_allclose(path.coef_[0, position], expected, atol=2e-4 * scale)
        np.testing.assert_allclose(path.intercept_[0, position], constant, atol=2e-3)


def test_two_classes_are_one_binary_logit_as_in_scikit_learn():
    features, target = blobs(50, 6, 2, seed=1)
    path = LogisticPath([0.1], "multiclass", tolerance=1e-13).fit(features, one_hot(target, 2))
    reference, least = sklearn_fit(features, target, np.ones(50), 0.1)
    coef = path.coef_[0, 0]
    np.testing.assert_allclose(coef[1] - coef[0], reference.coef_[0], atol=1e-6)
    np.testing.assert_allclose(coef[1], -coef[0], atol=1e-9)
    assert path.objective_[0, 0, 0] == pytest.approx(least, rel=1e-9)


def test_without_information_the_intercepts_are_the_class_frequencies():
    target = np.repeat([0, 1, 2], [5, 3, 2])
    path = LogisticPath([1.0], "multiclass").fit(np.full((10, 4), 7.0), one_hot(target, 3))
    assert (path.coef_ == 0).all()
    np.testing.assert_allclose(softmax(path.intercept_[0]), [[0.5, 0.3, 0.2]])
    entropy = -(5 * np.log(0.5) + 3 * np.log(0.3) + 2 * np.log(0.2))
    assert path.objective_[0, 0, 0] == pytest.approx(entropy)


def test_the_gradient_at_the_solution_is_what_is_recorded():
    features, target = blobs(80, 5, 3, seed=5)
    truth = one_hot(target, 3)
    path = LogisticPath([0.5], "multiclass", tolerance=1e-6).fit(features, truth)
    residual = softmax(features @ path.coef_[0, 0].T + path.intercept_[0, 0]) - truth
    centred = features - features.mean(0, dtype=np.float64)
    by_coef = residual.T @ centred + path.coef_[0, 0] / 0.5
    norm = np.sqrt((by_coef**2).sum() + (residual.sum(0) ** 2).sum())
    assert path.gradient_norm_[0, 0, 0] == pytest.approx(norm, rel=1e-6)


def test_a_mask_is_a_fit_on_the_rows_it_keeps():
    features, target = blobs(60, 20, 4, seed=8)
    truth = one_hot(target, 4)
    kept = np.arange(60) % 3 != 0
    masked = LogisticPath(GRID, "multiclass", tolerance=1e-12).fit(
        features, truth, np.stack([np.ones(60, bool), kept], axis=1)
    )
    alone = LogisticPath(GRID, "multiclass", tolerance=1e-12).fit(features[kept], truth[kept])
    np.testing.assert_allclose(masked.objective_[1], alone.objective_[0], rtol=1e-9)
    np.testing.assert_allclose(masked.coef_[1], alone.coef_[0], atol=1e-4)


def test_masks_may_differ_between_labels():
    features, target = blobs(60, 20, 4, seed=8)
    truth = one_hot(target, 4)
    weights = np.random.default_rng(0).random((60, 2, 4)) < 0.7
    path = LogisticPath(GRID, "multilabel", tolerance=1e-12).fit(features, truth, weights)
    for weighting, label in np.ndindex(2, 4):
        rows = weights[:, weighting, label]
        alone = LogisticPath(GRID, "multilabel", tolerance=1e-12)
        alone.fit(features[rows], truth[rows, label : label + 1])
        np.testing.assert_allclose(
            path.objective_[weighting, :, label], alone.objective_[0, :, 0], rtol=1e-9
        )


def test_weight_two_is_the_row_twice():
    features, target = blobs(40, 6, 3, seed=2)
    truth = one_hot(target, 3)
    twice = np.r_[np.arange(40), np.arange(10)]
    weighted = LogisticPath(GRID, "multiclass", tolerance=1e-12).fit(
        features, truth, np.where(np.arange(40) < 10, 2.0, 1.0)
    )
    repeated = LogisticPath(GRID, "multiclass", tolerance=1e-12).fit(features[twice], truth[twice])
    np.testing.assert_allclose(weighted.objective_, repeated.objective_, rtol=1e-9)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("held", ["rotated", "as given"])
@pytest.mark.parametrize(("n", "d"), [(2000, 30), (90, 120)])
def test_the_ways_of_large_problems_give_the_answer_of_small_ones(
    monkeypatch, task, precision, held, n, d
):
    features, target = blobs(n, d, 5, seed=4, spread=0.5)
    truth = one_hot(target, 5)
    folds = np.stack([np.arange(n) % 5 != fold for fold in range(5)], axis=1)
    small = LogisticPath(GRID, task, tolerance=1e-9).fit(features, truth, folds)
    monkeypatch.setattr(logistic, "_DOUBLE", 0)
    monkeypatch.setattr(logistic, "_ROTATED", 0 if held == "as given" else 1 << 24)
    monkeypatch.setattr(logistic, "_BLOCK_LOGITS", 1)  # blocks of 256 rows
    tolerance, agreement = {"float32": (1e-6, 5e-5), "float64": (1e-9, 1e-7)}[precision]
    large = LogisticPath(GRID, task, tolerance=tolerance, precision=precision)
    large.fit(features.astype(precision), truth, folds)
    assert large.converged_.all()
    np.testing.assert_allclose(large.objective_, small.objective_, rtol=agreement)
    np.testing.assert_allclose(
        large.log_loss(features, truth, ~folds), small.log_loss(features, truth, ~folds), rtol=1e-2
    )


@pytest.mark.parametrize("rotated", [0, 1 << 24])
def test_the_rows_given_are_never_written_to(monkeypatch, rotated):
    monkeypatch.setattr(logistic, "_ROTATED", rotated)
    features, target = blobs(500, 8, 3, seed=4)
    features = features.astype(np.float64)
    features.flags.writeable = False
    before = features.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LogisticPath(GRID, "multiclass", precision="float64").fit(features, one_hot(target, 3))
    np.testing.assert_array_equal(features, before)


def test_log_loss_is_that_of_the_rows_given():
    features, target = blobs(60, 8, 3, seed=6)
    truth = one_hot(target, 3)
    path = LogisticPath(GRID, "multiclass").fit(features[:40], truth[:40])
    losses = path.log_loss(features[40:], truth[40:], np.ones((20, 1)))
    for position in range(len(GRID)):
        logits = features[40:] @ path.coef_[0, position].T + path.intercept_[0, position]
        expected = -np.log(softmax(logits)[truth[40:] == 1]).sum()
        assert losses[0, position, 0] == pytest.approx(expected)


def test_equal_input_gives_equal_bits():
    features, target = blobs(90, 30, 4, seed=9)
    first, second = (
        LogisticPath(GRID, "multiclass").fit(features, one_hot(target, 4)) for _ in range(2)
    )
    for name in ("coef_", "intercept_", "objective_", "gradient_norm_", "n_iter_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(("n", "d"), [(90, 30), (40, 100)])
def test_another_order_of_rows_moves_the_objective_within_the_tolerance(n, d):
    features, target = blobs(n, d, 4, seed=9)
    order = np.random.default_rng(0).permutation(n)
    first = LogisticPath(GRID, "multiclass").fit(features, one_hot(target, 4))
    second = LogisticPath(GRID, "multiclass").fit(features[order], one_hot(target[order], 4))
    np.testing.assert_allclose(first.objective_, second.objective_, rtol=5e-7)


def test_a_class_without_members_is_left_out():
    features, target = blobs(50, 6, 3, seed=1)
    without = LogisticPath(GRID, "multiclass").fit(features, one_hot(target, 3))
    within = LogisticPath(GRID, "multiclass").fit(features, one_hot(target * 2, 5))
    assert within.present_.tolist() == [[True, False, True, False, True]]
    assert (within.coef_[:, :, [1, 3]] == 0).all()
    np.testing.assert_allclose(within.coef_[:, :, ::2], without.coef_, atol=1e-9)


def test_a_single_class_is_not_fitted():
    features, _ = blobs(10, 4, 2, seed=0)
    truth = np.stack([np.ones(10), np.zeros(10), np.arange(10) % 2], axis=1).astype(np.int8)
    path = LogisticPath(GRID, "multilabel").fit(features, truth)
    assert path.present_.tolist() == [[False, False, True]]
    assert np.isnan(path.objective_[..., :2]).all()
    assert (path.coef_[..., :2, :] == 0).all()
    one_class = LogisticPath(GRID, "multiclass").fit(features, one_hot(np.zeros(10, int), 3))
    assert np.isnan(one_class.objective_).all()
    assert not one_class.capped_


def test_the_time_cap_stops_the_fit_and_is_recorded():
    features, target = blobs(50, 20, 3, seed=1)
    truth = one_hot(target, 3)
    capped = LogisticPath(GRID, "multiclass", time_cap_seconds=0.0).fit(features, truth)
    assert capped.capped_
    assert not capped.converged_.any()
    assert (capped.n_iter_ == 1).all()
    assert not LogisticPath(GRID, "multiclass", time_cap_seconds=60.0).fit(features, truth).capped_


def test_too_few_iterations_are_recorded():
    features, target = blobs(50, 20, 3, seed=1)
    path = LogisticPath([1e4], "multiclass", max_iterations=3).fit(features, one_hot(target, 3))
    assert path.n_iter_.item() == 3
    assert not path.converged_.item()
    assert not path.capped_


def test_features_that_are_not_finite_are_counted():
    features, target = blobs(20, 4, 2, seed=0)
    features[3, 1], features[7, 0], features[7, 2] = np.nan, np.inf, np.nan
    with pytest.raises(UserError, match="2 of 20 rows"):
        LogisticPath(GRID, "multiclass").fit(features, one_hot(target, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c_grid": [1.0, 0.0]}, "c_grid"),
        ({"precision": "float16"}, "float16"),
        ({"task": "binary"}, "binary"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_parameters_out_of_range_are_named(change, message):
    features, target = blobs(20, 4, 2, seed=0)
    parameters = {"c_grid": GRID, "task": "multiclass"} | change
    with pytest.raises(ValueError, match=message):
        LogisticPath(**parameters).fit(features, one_hot(target, 2))


@pytest.mark.parametrize(
    ("features", "truth", "weights", "message"),
    [
        (np.ones((4, 2), np.float32), np.ones((4, 2), int), None, "exactly one 1"),
        (np.ones((4, 2), np.float32), np.eye(3, dtype=int), None, "truth of shape"),
        (np.ones((3, 2), np.float32), 2 * np.eye(3, dtype=int), None, "0 and 1"),
        (np.ones((3, 2), np.float32), np.eye(3, dtype=int), -np.ones(3), "negative"),
        (np.ones((3, 2), np.float32), np.eye(3, dtype=int), np.ones((3, 1, 3)), "weights"),
        (np.ones((3, 2), int), np.eye(3, dtype=int), None, "floats"),
        (np.ones((0, 2)), np.ones((0, 2), int), None, "at least one row"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(features, truth, weights, message):
    with pytest.raises(ValueError, match=message):
        LogisticPath(GRID, "multiclass").fit(features, truth, weights)
