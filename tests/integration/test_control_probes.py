"""The control probes: k nearest neighbours and a two-layer perceptron."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from crsbench.core.errors import UserError
from crsbench.probes import knn
from crsbench.probes.knn import NeighbourSettings, fit_neighbours
from crsbench.probes.mlp import FittedPerceptron, PerceptronSettings, fit_perceptron

METRICS = ("cosine", "euclidean")


def one_hot(target, n_classes):
    return np.eye(n_classes, dtype=np.int8)[np.asarray(target, dtype=int)]


# --- k nearest neighbours --------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n_train", [5, 30, 400])
def test_neighbours_equal_scikit_learns(metric, n_train):
    rng = np.random.default_rng(n_train)
    train, test = rng.standard_normal((n_train, 12)), rng.standard_normal((50, 12))
    target = np.r_[0:3, rng.integers(3, size=n_train - 3)]
    probe = fit_neighbours(
        train.astype(np.float32), one_hot(target, 3), "multiclass", NeighbourSettings(metric=metric)
    )
    reference = KNeighborsClassifier(5, metric=metric, algorithm="brute").fit(train, target)
    np.testing.assert_allclose(
        probe.predict_proba(test.astype(np.float32)), reference.predict_proba(test), atol=1e-12
    )


def test_multilabel_shares_are_per_label():
    rng = np.random.default_rng(0)
    train, truth = rng.standard_normal((60, 6)), (rng.random((60, 4)) < 0.3).astype(np.int8)
    probe = fit_neighbours(
        train.astype(np.float32), truth, "multilabel", NeighbourSettings(metric="euclidean")
    )
    reference = KNeighborsClassifier(5, algorithm="brute").fit(train, truth)
    expected = np.stack([p[:, 1] for p in reference.predict_proba(train[:20])], axis=1)
    np.testing.assert_allclose(
        probe.predict_proba(train[:20].astype(np.float32)), expected, atol=1e-12
    )


@pytest.mark.parametrize("metric", METRICS)
def test_neighbours_of_a_label_are_sought_among_its_known_rows(metric):
    rng = np.random.default_rng(1)
    train = rng.standard_normal((60, 6)).astype(np.float32)
    truth = (rng.random((60, 3)) < 0.4).astype(np.int8)
    truth[rng.random((60, 3)) < [0.0, 0.4, 0.96]] = -1  # the last: fewer than five known rows
    truth = np.c_[truth, np.full(60, -1)]
    choice = NeighbourSettings(metric=metric)
    shares = fit_neighbours(train, truth, "multilabel", choice).predict_proba(train)
    for label in range(3):
        known = truth[:, label] >= 0
        alone = fit_neighbours(train[known], truth[known, label, None], "multilabel", choice)
        np.testing.assert_allclose(shares[:, label], alone.predict_proba(train)[:, 0], atol=1e-12)
    np.testing.assert_array_equal(shares[:, 3], 0.5)


def test_rows_level_with_the_fifth_share_its_vote():
    """On a line from 0: rows at 1, 2, 3, 4 are nearer; three rows at 5 share the fifth vote."""
    train = np.array([[1], [2], [3], [4], [5], [-5], [5], [6]], np.float32)
    target = np.array([0, 0, 1, 1, 0, 1, 1, 2])
    probe = fit_neighbours(
        train, one_hot(target, 3), "multiclass", NeighbourSettings(metric="euclidean")
    )
    shares = probe.predict_proba(np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(shares, [[(2 + 1 / 3) / 5, (2 + 2 / 3) / 5, 0]], rtol=1e-14)


def test_fewer_rows_than_neighbours_all_vote():
    probe = fit_neighbours(np.eye(3, dtype=np.float32), one_hot([0, 0, 1], 4), "multiclass")
    np.testing.assert_allclose(
        probe.predict_proba(np.ones((2, 3), np.float32)), [[2 / 3, 1 / 3, 0, 0]] * 2
    )


def test_a_row_of_zeros_is_at_cosine_distance_one_from_every_row():
    train = np.array([[1, 0], [-1, 0], [0, 0]], np.float32)
    probe = fit_neighbours(train, one_hot([0, 1, 2], 3), "multiclass", NeighbourSettings(2))
    shares = probe.predict_proba(np.array([[1, 0], [-1, 0], [0, 0]], np.float32))
    np.testing.assert_allclose(shares, [[0.5, 0, 0.5], [0, 0.5, 0.5], [1 / 3] * 3])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(METRICS), st.integers(1, 7))
def test_the_order_of_rows_is_of_no_effect_even_among_duplicates(seed, metric, k):
    rng = np.random.default_rng(seed)
    train = rng.integers(-1, 2, (30, 3)).astype(np.float32)  # many rows at equal distance
    truth = one_hot(rng.integers(3, size=30), 3)
    test = rng.integers(-1, 2, (10, 3)).astype(np.float32)
    order = rng.permutation(30)
    choice = NeighbourSettings(k, metric)
    first = fit_neighbours(train, truth, "multiclass", choice).predict_proba(test)
    second = fit_neighbours(train[order], truth[order], "multiclass", choice).predict_proba(test)
    np.testing.assert_allclose(first, second, atol=1e-12)
    np.testing.assert_allclose(first.sum(1), 1.0)


def test_neighbours_that_float32_cannot_distinguish_are_distinguished():
    """Far from the origin |b|^2 - 2 a.b in float32 has lost the distances; the answer has not."""
    offsets = np.arange(1, 21, dtype=np.float32)[::-1, None] / 64
    train = np.concatenate([1000 + offsets, np.full((20, 1), 1000, np.float32)], axis=1)
    truth = one_hot(np.arange(20) >= 15, 2)  # the five nearest
    probe = fit_neighbours(train, truth, "multiclass", NeighbourSettings(metric="euclidean"))
    np.testing.assert_array_equal(probe.predict_proba(np.full((1, 2), 1000, np.float32)), [[0, 1]])


def test_blocks_of_queries_are_of_no_effect(monkeypatch):
    rng = np.random.default_rng(2)
    train = rng.standard_normal((100, 8)).astype(np.float32)
    probe = fit_neighbours(train, one_hot(np.arange(100) % 3, 3), "multiclass")
    whole = probe.predict_proba(train)
    monkeypatch.setattr(knn, "_QUERIES_AT_ONCE", 7)
    monkeypatch.setattr(knn, "_PAIRS_AT_ONCE", 11)
    np.testing.assert_array_equal(probe.predict_proba(train), whole)


def test_neighbour_settings_out_of_range_are_named():
    with pytest.raises(ValueError, match="manhattan"):
        NeighbourSettings(metric="manhattan")
    with pytest.raises(ValueError, match="neighbours is 0"):
        NeighbourSettings(0)


def test_neighbours_refuse_features_that_are_not_finite_or_of_another_width():
    train, truth = np.eye(4, dtype=np.float32), one_hot([0, 1, 0, 1], 2)
    probe = fit_neighbours(train, truth, "multiclass")
    with pytest.raises(UserError, match="1 of 4 rows"):
        probe.predict_proba(np.where(np.arange(4)[:, None] == 2, np.nan, train))
    with pytest.raises(ValueError, match="3 columns"):
        probe.predict_proba(np.ones((2, 3), np.float32))
    with pytest.raises(UserError, match="4 of 4 rows"):
        fit_neighbours(train * np.nan, truth, "multiclass")


# --- the perceptron --------------------------------------------------------------------------

SMALL = PerceptronSettings(c_grid=(1e-3, 1e-1, 10.0), hidden=16, max_epochs=60)


def rings(n, seed=0):
    """Two classes that no hyperplane separates: inside and outside a circle."""
    features = np.random.default_rng(seed).standard_normal((n, 2)).astype(np.float32)
    return features, one_hot((np.square(features).sum(1) > 1.4).astype(int), 2)


def test_the_perceptron_learns_what_is_not_linear():
    features, truth = rings(600)
    choice = replace(SMALL, max_epochs=100, learning_rate=1e-2)
    probe = fit_perceptron(features, truth, np.arange(600), "multiclass", choice)
    unseen, expected = rings(400, seed=1)
    accuracy = (probe.predict_proba(unseen).argmax(1) == expected.argmax(1)).mean()
    assert accuracy > 0.93  # a linear probe gets the larger class: about 0.5


def test_probabilities_are_those_of_the_layers_by_torch():
    features, truth = rings(80)
    probe = fit_perceptron(features, truth, np.arange(80), "multiclass", SMALL)
    layers = torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2), torch.nn.Softmax(1)
    ).double()
    for layer, weights, bias in [
        (layers[0], probe.hidden_weights_, probe.hidden_bias_),
        (layers[2], probe.output_weights_, probe.output_bias_),
    ]:
        layer.weight.data = torch.from_numpy(weights.T)
        layer.bias.data = torch.from_numpy(bias)
    expected = layers(torch.from_numpy(features).double()).detach().numpy()
    np.testing.assert_allclose(probe.predict_proba(features), expected, atol=1e-12)


def test_multilabel_probabilities_follow_the_labels():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((400, 5)).astype(np.float32)
    truth = (features[:, :3] > [0, 0.5, 1]).astype(np.int8)
    choice = replace(SMALL, learning_rate=1e-2)
    probe = fit_perceptron(features, truth, np.arange(400), "multilabel", choice)
    assert ((probe.predict_proba(features) > 0.5) == truth).mean() > 0.93


def test_what_an_unknown_label_would_have_been_is_of_no_effect_on_the_perceptron():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 5)).astype(np.float32)
    truth = (features[:, :3] > [0, 0.5, 1]).astype(np.int8)
    unknown = rng.random(truth.shape) < [0.3, 0.3, 0.0]
    choice = replace(SMALL, learning_rate=1e-2)
    probe = fit_perceptron(
        features, np.where(unknown, -1, truth), np.arange(200), "multilabel", choice
    )
    assert ((probe.predict_proba(features) > 0.5) == truth).mean() > 0.9
    zeros = fit_perceptron(
        features, np.where(unknown, 0, truth), np.arange(200), "multilabel", choice
    )
    mean = probe.predict_proba(features).mean(0), zeros.predict_proba(features).mean(0)
    np.testing.assert_allclose(mean[0][:2], truth[:, :2].mean(0), atol=0.07)
    assert (mean[1][:2] < 0.85 * mean[0][:2]).all()  # taken as negatives they pull down
    truth[:, 2], unknown[:, 2] = 1, rng.random(200) < 0.5
    none = fit_perceptron(
        features, np.where(unknown, -1, truth), np.arange(200), "multilabel", SMALL
    )
    positives = 200 - unknown[:, 2].sum()
    assert none.floor_classes_.tolist() == [2]
    assert none.floor_probabilities_ == (positives + 1) / (positives + 2)


def test_strong_regularisation_leaves_the_class_frequencies():
    features, _ = rings(300)
    truth = one_hot(np.arange(300) % 4 > 0, 2)
    choice = replace(SMALL, c_grid=(1e-9,), max_epochs=300, learning_rate=1e-2)
    probe = fit_perceptron(features, truth, np.arange(300), "multiclass", choice)
    np.testing.assert_allclose(probe.predict_proba(features), [[0.25, 0.75]] * 300, atol=0.02)


def test_the_objective_is_stationary_where_training_ends():
    """sum of log-losses + ||weights||^2 / (2 C): at its least, weights / C = -gradient of the sum.

    All rows in one group: nothing can be held out, so all epochs are run, with C = 0.1. (Units at
    rest on a row, where the rectifier has its kink, are not exactly stationary.)
    """
    features, truth = rings(150)
    choice = replace(SMALL, max_epochs=3000, batch_rows=150, learning_rate=3e-3)
    probe = fit_perceptron(features, truth, np.zeros(150), "multiclass", choice)
    hidden = np.maximum(features @ probe.hidden_weights_ + probe.hidden_bias_, 0)
    residual = probe.predict_proba(features) - truth
    by_output = hidden.T @ residual
    by_hidden = features.T @ ((residual @ probe.output_weights_.T) * (hidden > 0))
    for weights, gradient in [
        (probe.output_weights_, by_output),
        (probe.hidden_weights_, by_hidden),
    ]:
        assert np.abs(weights).max() > 0.05
        assert np.linalg.norm(weights / 0.1 + gradient) < 0.05 * np.linalg.norm(gradient)
    np.testing.assert_allclose(residual.sum(0), 0, atol=0.1)


def test_training_stops_early_and_refits_with_the_best_number_of_epochs():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 100)).astype(np.float32)
    truth = one_hot(rng.integers(2, size=60), 2)  # noise: what is learnt does not carry over
    choice = replace(SMALL, c_grid=(1e3,), patience=5, learning_rate=1e-2)
    probe = fit_perceptron(features, truth, np.arange(60), "multiclass", choice)
    assert probe.converged_.tolist() == [True]
    assert probe.epochs_ <= 10
    assert probe.validation_log_loss_[0] <= np.log(2) + 1e-6  # no worse than the start


def test_equal_input_gives_equal_bytes_and_a_seed_of_its_own_another_draw(tmp_path):
    features, truth = rings(90)
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        choice = replace(SMALL, seed=seed)
        fit_perceptron(features, truth, np.arange(90), "multiclass", choice).save(tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_each_configuration_trains_as_if_alone():
    features, truth = rings(100)
    together = fit_perceptron(features, truth, np.arange(100), "multiclass", SMALL)
    alone = [
        fit_perceptron(features, truth, np.arange(100), "multiclass", replace(SMALL, c_grid=(c,)))
        for c in SMALL.c_grid
    ]
    np.testing.assert_allclose(
        together.validation_log_loss_, [p.validation_log_loss_[0] for p in alone], rtol=1e-3
    )
    assert together.c_[0] == SMALL.c_grid[together.validation_log_loss_.argmin()]


def test_one_image_per_class_trains_without_early_stopping():
    features = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    probe = fit_perceptron(features, one_hot(np.arange(5), 5), np.arange(5), "multiclass", SMALL)
    assert probe.folds_.tolist() == [0]
    assert probe.c_.tolist() == [1e-1]
    assert probe.epochs_ == SMALL.max_epochs
    assert np.isnan(probe.validation_log_loss_).all()
    assert np.isfinite(probe.predict_proba(features)).all()


def test_floors_are_those_of_the_logistic_probe():
    features, truth = rings(30)
    wide = np.zeros((30, 4), np.int8)
    wide[:, [0, 2]] = truth
    probability = fit_perceptron(features, wide, np.arange(30), "multiclass", SMALL).predict_proba(
        features
    )
    np.testing.assert_array_equal(probability[:, [1, 3]], 1 / 34)
    np.testing.assert_allclose(probability.sum(1), 1.0)
    labels = np.stack([np.zeros(30), truth[:, 1], np.ones(30)], axis=1).astype(np.int8)
    probe = fit_perceptron(features, labels, np.arange(30), "multilabel", SMALL)
    assert probe.floor_classes_.tolist() == [0, 2]
    np.testing.assert_array_equal(
        probe.predict_proba(features)[:, [0, 2]], [[1 / 32, 31 / 32]] * 30
    )


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_a_single_class_is_not_fitted(task):
    features, _ = rings(8)
    truth = one_hot(np.zeros(8, int), 3)
    probe = fit_perceptron(features, truth, np.arange(8), task, SMALL)
    assert np.isnan(probe.c_).all()
    assert probe.epochs_ == 0
    expected = [9 / 11, 1 / 11, 1 / 11] if task == "multiclass" else [0.9, 0.1, 0.1]
    np.testing.assert_allclose(probe.predict_proba(features), [expected] * 8)


def test_the_time_cap_of_the_selection_is_recorded():
    features, truth = rings(60)
    choice = replace(SMALL, time_cap_seconds=0.0)
    probe = fit_perceptron(features, truth, np.arange(60), "multiclass", choice)
    assert probe.capped_
    assert probe.epochs_ <= 1
    assert probe.converged_.tolist() == [False]


def test_save_and_load_keep_every_field(tmp_path):
    features, truth = rings(40)
    probe = fit_perceptron(features, truth, np.arange(40), "multiclass", SMALL)
    probe.save(tmp_path / "probe.npz")
    loaded = FittedPerceptron.load(tmp_path / "probe.npz")
    for field in fields(FittedPerceptron):
        np.testing.assert_array_equal(getattr(probe, field.name), getattr(loaded, field.name))
    np.testing.assert_array_equal(loaded.predict_proba(features), probe.predict_proba(features))
    replace(probe, output_bias_=np.zeros(5)).save(tmp_path / "probe.npz")
    with pytest.raises(UserError, match="output_weights_"):
        FittedPerceptron.load(tmp_path / "probe.npz")


def test_perceptron_settings_and_arrays_out_of_range_are_named():
    with pytest.raises(ValueError, match="patience"):
        PerceptronSettings(patience=0)
    with pytest.raises(ValueError, match="c_grid"):
        PerceptronSettings(c_grid=(1.0, 0.1))
    features, truth = rings(10)
    with pytest.raises(UserError, match="10 of 10 rows"):
        fit_perceptron(features * np.inf, truth, np.arange(10), "multiclass")
    with pytest.raises(ValueError, match="groups"):
        fit_perceptron(features, truth, np.arange(9), "multiclass")
