"""C by grouped cross-validation, floors, and the file of a fitted probe."""

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from crsbench.core.errors import UserError
from crsbench.core.files import write_arrays
from crsbench.probes.fitted import FittedProbe, ProbeSettings
from crsbench.probes.folds import assign_folds
from crsbench.probes.selection import fit_probe

SETTINGS = ProbeSettings(tolerance=1e-10)


def sample(n, d, n_classes, seed=0, spread=0.4):
    rng = np.random.default_rng(seed)
    target = np.arange(n) % n_classes
    centres = spread * rng.standard_normal((n_classes, d))
    features = (rng.standard_normal((n, d)) + centres[target]).astype(np.float32)
    return features, np.eye(n_classes, dtype=np.int8)[target], np.arange(n) // 2


def labels(n, d, n_labels, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, d)).astype(np.float32)
    logits = 1.5 * features[:, :n_labels] + np.linspace(-2, 0.5, n_labels)
    truth = (logits + rng.logistic(size=logits.shape) > 0).astype(np.int8)
    return features, truth, np.arange(n) // 2


# --- unknown labels --------------------------------------------------------------------------


def test_a_label_is_fitted_on_its_known_rows_and_nothing_else():
    """The same folds, C, predictions and floors as if the label's unknown rows weren't there."""
    features, truth, groups = labels(160, 6, 4, seed=3)
    rng = np.random.default_rng(4)
    truth[rng.random(truth.shape) < [0.0, 0.3, 0.6, 0.5]] = -1
    truth[truth[:, 3] == 0, 3] = -1  # a label left without negatives
    joint = fit_probe(features, truth, groups, "multilabel", SETTINGS)
    probabilities = joint.predict_proba(features)
    for k in range(4):
        rows = truth[:, k] >= 0
        alone = fit_probe(
            features[rows], truth[rows, k, None], groups[rows], "multilabel", SETTINGS
        )
        assert joint.folds_[k] == alone.folds_[0]
        np.testing.assert_equal(joint.c_[k], alone.c_[0])
        np.testing.assert_allclose(joint.oof_log_loss_[k], alone.oof_log_loss_[0], rtol=1e-5)
        own = alone.predict_proba(features)[:, 0]
        np.testing.assert_allclose(probabilities[:, k], own, atol=2e-5)
    assert joint.floor_classes_.tolist() == [3]
    positives = (truth[:, 3] == 1).sum()
    assert joint.floor_probabilities_ == (positives + 1) / (positives + 2)


def test_what_an_unknown_label_would_have_been_is_of_no_effect():
    features, truth, groups = labels(120, 5, 3, seed=5)
    hidden = np.random.default_rng(6).random(truth.shape) < 0.4
    probes = []
    for guess in (0, 1):
        stated = np.where(hidden, guess, truth)
        known = np.where(hidden, -1, stated).astype(np.int8)
        probes.append(fit_probe(features, known, groups, "multilabel", SETTINGS))
    np.testing.assert_array_equal(probes[0].coef_, probes[1].coef_)
    assert not probes[0].floor_classes_.size


def test_a_label_without_any_known_row_is_predicted_at_one_half():
    features, truth, groups = labels(60, 4, 2, seed=7)
    truth[:, 1] = -1
    probe = fit_probe(features, truth, groups, "multilabel", SETTINGS)
    assert probe.floor_classes_.tolist() == [1]
    assert (probe.predict_proba(features)[:, 1] == 0.5).all()
    assert probe.folds_.tolist()[1] == 0


def test_a_class_can_not_be_unknown():
    features, truth, groups = sample(30, 3, 3)
    truth[0] = -1
    with pytest.raises(ValueError, match="of 0 and 1"):
        fit_probe(features, truth, groups, "multiclass", SETTINGS)


# --- folds -----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 80), st.integers(2, 6), st.integers(1, 4))
def test_no_group_crosses_folds_and_row_order_is_of_no_effect(seed, n, n_classes, group_size):
    rng = np.random.default_rng(seed)
    classes = rng.integers(n_classes, size=n)
    groups = np.array([f"patient{g}" for g in rng.integers(max(1, n // group_size), size=n)])
    fold, n_folds = assign_folds(classes, groups, 5)
    for group in np.unique(groups):
        assert len(np.unique(fold[groups == group])) == 1
    order = rng.permutation(n)
    again, n_again = assign_folds(classes[order], groups[order], 5)
    assert n_again == n_folds
    np.testing.assert_array_equal(again, fold[order])
    if n_folds:
        assert 2 <= n_folds <= 5
        assert set(fold) == set(range(n_folds))


@pytest.mark.parametrize("n_classes", [2, 3, 8])
def test_single_row_groups_are_stratified_to_within_one_row(n_classes):
    classes = np.random.default_rng(0).choice(n_classes, 203)
    fold, n_folds = assign_folds(classes, np.arange(203), 5)
    assert n_folds == 5
    counts = np.array([np.bincount(classes[fold == f], minlength=n_classes) for f in range(5)])
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_the_rarest_class_with_two_groups_sets_the_number_of_folds():
    classes = np.r_[np.zeros(50, int), [1, 1, 1], [2]]
    fold, n_folds = assign_folds(classes, np.arange(54), 5)
    assert n_folds == 3  # class 2 has one group only and cannot be split
    assert sorted(fold[classes == 1]) == [0, 1, 2]


def test_a_class_of_many_rows_in_one_group_counts_as_one_group():
    classes = np.repeat([0, 1], 10)
    assert assign_folds(classes, np.r_[np.arange(10), np.full(10, 99)], 5)[1] == 0


@pytest.mark.parametrize(
    ("classes", "groups"),
    [
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),  # one member each
        ([0, 0, 0, 0], [0, 1, 2, 3]),  # one class
        ([0, 0, 0, 1], [0, 1, 2, 3]),  # only one class can be split
        ([0, 1, 0, 1], [7, 7, 7, 7]),  # one group
    ],
)
def test_where_no_two_folds_can_be_made(classes, groups):
    fold, n_folds = assign_folds(np.array(classes), np.array(groups), 5)
    assert n_folds == 0
    assert (fold == -1).all()


# --- the choice of C ---------------------------------------------------------------------------


def reference_losses(features, target, groups, grid, n_classes):
    """The protocol with a scikit-learn loop, for classes that every training fold has."""
    fold, n_folds = assign_folds(target, groups, 5)
    losses = np.zeros(len(grid))
    for position, c in enumerate(grid):
        for held_out in range(n_folds):
            test = fold == held_out
            model = LogisticRegression(C=c, tol=1e-9, max_iter=10_000)
            model.fit(features[~test].astype(np.float64), target[~test])
            probability = model.predict_proba(features[test].astype(np.float64))
            losses[position] -= np.log(probability[np.arange(test.sum()), target[test]]).sum()
    return losses / len(target)


@pytest.mark.parametrize(("n", "d", "n_classes"), [(60, 8, 3), (40, 70, 2), (70, 100, 4)])
def test_c_has_the_least_out_of_fold_loss_of_a_scikit_learn_loop(n, d, n_classes):
    features, truth, groups = sample(n, d, n_classes)
    probe = fit_probe(features, truth, groups, "multiclass", SETTINGS)
    expected = reference_losses(features, truth.argmax(1), groups, SETTINGS.c_grid, n_classes)
    np.testing.assert_allclose(probe.oof_log_loss_[0], expected, rtol=1e-4)
    assert probe.c_[0] == SETTINGS.c_grid[expected.argmin()]
    refit = LogisticRegression(C=probe.c_[0], tol=1e-9, max_iter=10_000)
    refit.fit(features.astype(np.float64), truth.argmax(1))
    np.testing.assert_allclose(
        probe.predict_proba(features), refit.predict_proba(features.astype(np.float64)), atol=1e-4
    )


def test_each_label_chooses_its_own_c_from_its_own_folds():
    features, truth, groups = labels(80, 20, 4)
    truth[:, 3] = np.isin(np.arange(80), (0, 41))  # two groups: two folds
    probe = fit_probe(features, truth, groups, "multilabel", SETTINGS)
    assert probe.folds_.tolist() == [5, 5, 5, 2]
    assert probe.oof_log_loss_.shape == (4, 7)
    for label in range(4):
        expected = reference_losses(features, truth[:, label], groups, SETTINGS.c_grid, 2)
        np.testing.assert_allclose(probe.oof_log_loss_[label], expected, rtol=1e-4)
        assert probe.c_[label] == SETTINGS.c_grid[expected.argmin()]
        refit = LogisticRegression(C=probe.c_[label], tol=1e-9, max_iter=10_000)
        refit.fit(features.astype(np.float64), truth[:, label])
        np.testing.assert_allclose(
            probe.predict_proba(features)[:, label],
            refit.predict_proba(features.astype(np.float64))[:, 1],
            atol=1e-4,
        )


def audited(name):
    """Features, truth, groups and task of a case that the audit path must fit as well."""
    if name == "multilabel":
        features, truth, groups = labels(160, 6, 4, seed=3)
        truth[np.random.default_rng(4).random(truth.shape) < [0.0, 0.3, 0.6, 0.5]] = -1
        truth[truth[:, 3] == 0, 3] = -1  # a label at its floor
        truth[:, 2] = np.isin(np.arange(160), (0, 41))  # two folds only
        return features, truth, groups, "multilabel"
    n_classes = 2 if name == "two classes" else 4
    features, truth, groups = sample(120, 30, n_classes)
    if name == "rare class":  # in one group: one fold trains without it; and one has no members
        target = np.where(np.arange(120) < 2, 4, truth.argmax(1))
        truth = np.eye(6, dtype=np.int8)[target]
    return features, truth, groups, "multiclass"


@pytest.mark.parametrize("name", ["two classes", "four classes", "rare class", "multilabel"])
def test_the_audit_path_gives_the_same_probe(name):
    features, truth, groups, task = audited(name)
    ours = fit_probe(features, truth, groups, task, SETTINGS)
    theirs = fit_probe(features, truth, groups, task, replace(SETTINGS, engine="scikit-learn"))
    for field in ("c_", "folds_", "floor_classes_", "floor_probabilities_", "converged_"):
        np.testing.assert_array_equal(getattr(theirs, field), getattr(ours, field))
    np.testing.assert_allclose(theirs.oof_log_loss_, ours.oof_log_loss_, rtol=1e-4)
    np.testing.assert_allclose(theirs.objective_, ours.objective_, rtol=1e-7)
    new = np.random.default_rng(9).standard_normal(features.shape)
    np.testing.assert_allclose(theirs.predict_proba(new), ours.predict_proba(new), atol=1e-4)


def test_the_audit_path_ends_with_its_time_cap():
    features, truth, groups = sample(60, 8, 3)
    hurried = replace(SETTINGS, engine="scikit-learn", time_cap_seconds=0)
    probe = fit_probe(features, truth, groups, "multiclass", hurried)
    assert probe.capped_
    assert not probe.converged_.any()
    assert np.isfinite(probe.predict_proba(features)).all()


def test_ties_go_to_the_stronger_regularisation():
    truth = np.eye(2, dtype=np.int8)[np.arange(20) % 2]
    probe = fit_probe(np.ones((20, 3), np.float32), truth, np.arange(20), "multiclass")
    assert np.ptp(probe.oof_log_loss_) == 0
    assert probe.c_.tolist() == [1e-5]


def test_labels_of_a_multilabel_probe_do_not_depend_on_each_other():
    features, truth, groups = labels(60, 10, 3)
    together = fit_probe(features, truth, groups, "multilabel", SETTINGS)
    alone = fit_probe(features, truth[:, [1]], groups, "multilabel", SETTINGS)
    assert together.c_[1] == alone.c_[0]
    np.testing.assert_allclose(together.coef_[1], alone.coef_[0], atol=1e-6)


def test_the_same_rows_give_the_same_bytes_and_another_order_the_same_choice(tmp_path):
    features, truth, groups = sample(60, 100, 4)
    first = fit_probe(features, truth, groups, "multiclass")
    second = fit_probe(features, truth, groups.astype(str), "multiclass")
    first.save(tmp_path / "a.npz")
    second.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    order = np.random.default_rng(1).permutation(60)
    third = fit_probe(features[order], truth[order], groups[order], "multiclass")
    assert third.c_ == first.c_
    np.testing.assert_allclose(
        third.predict_proba(features), first.predict_proba(features), atol=2e-3
    )


# --- floors and the smallest subsets -------------------------------------------------------------


def test_one_image_per_class_uses_the_default_c():
    features, truth, _groups = sample(5, 200, 5)
    probe = fit_probe(features, truth, np.arange(5), "multiclass")
    assert probe.c_.tolist() == [1e-2]
    assert probe.folds_.tolist() == [0]
    assert np.isnan(probe.oof_log_loss_).all()
    assert probe.converged_.all()
    assert (probe.predict_proba(features).argmax(1) == np.arange(5)).all()


def test_absent_classes_are_predicted_at_their_floor():
    features, truth, groups = sample(30, 10, 3)
    wide = np.zeros((30, 5), np.int8)
    wide[:, [0, 2, 3]] = truth
    probe = fit_probe(features, wide, groups, "multiclass", SETTINGS)
    probability = probe.predict_proba(features)
    assert probe.floor_classes_.tolist() == [1, 4]
    np.testing.assert_array_equal(probability[:, [1, 4]], 1 / 35)
    np.testing.assert_allclose(probability.sum(1), 1.0)
    narrow = fit_probe(features, truth, groups, "multiclass", SETTINGS)
    assert probe.c_ == narrow.c_
    np.testing.assert_allclose(
        probability[:, [0, 2, 3]], narrow.predict_proba(features) * (33 / 35), atol=1e-9
    )


def test_rows_of_one_class_only():
    features, _, groups = sample(6, 4, 2)
    truth = np.eye(3, dtype=np.int8)[np.full(6, 1)]
    probe = fit_probe(features, truth, groups, "multiclass")
    assert np.isnan(probe.c_).all()
    assert probe.floor_classes_.tolist() == [0, 2]
    np.testing.assert_allclose(probe.predict_proba(features), [[1 / 9, 7 / 9, 1 / 9]] * 6)


def test_labels_without_both_values_are_predicted_at_their_floor():
    features, truth, groups = labels(20, 6, 3)
    truth[:, 0], truth[:, 2] = 0, 1
    probe = fit_probe(features, truth, groups, "multilabel")
    probability = probe.predict_proba(features)
    assert probe.floor_classes_.tolist() == [0, 2]
    np.testing.assert_array_equal(probability[:, [0, 2]], [[1 / 22, 21 / 22]] * 20)
    assert np.isnan(probe.c_).tolist() == [True, False, True]
    assert probe.converged_.all()


def test_a_class_that_a_training_fold_lacks_costs_its_floor_out_of_fold():
    """Two classes of two single-row groups and one of a single row, without any information.

    Two folds. The lone row is held out once, by two training rows (one of each class); it costs
    -log(1/(2 + 3)), and the two rows held out beside it, at frequency 1/2 scaled by 1 - 1/5,
    -log(0.4) each. The other fold trains on three rows, one of each class: -log(1/3) each.
    """
    truth = np.eye(3, dtype=np.int8)[[0, 0, 1, 1, 2]]
    probe = fit_probe(np.ones((5, 2), np.float32), truth, np.arange(5), "multiclass")
    expected = (np.log(5) + 2 * np.log(2.5) + 2 * np.log(3)) / 5
    assert probe.folds_.tolist() == [2]
    np.testing.assert_allclose(probe.oof_log_loss_, expected)


def test_a_label_that_a_training_fold_lacks_costs_its_floor_out_of_fold():
    """Two groups hold both positives and one negative each, the rest of the groups are negative.

    All rows are alike, so a fold that trains on both values predicts their frequency. Here the
    second group's rows are in a fold of their own with no positive in training.
    """
    truth = np.array([[1], [0], [0], [1]], np.int8)
    groups = np.array(["a", "a", "b", "b"])
    probe = fit_probe(np.ones((4, 2), np.float32), truth, groups, "multilabel")
    assert probe.folds_.tolist() == [2]
    np.testing.assert_allclose(probe.oof_log_loss_, np.log(2))


def test_features_that_are_not_finite_are_a_user_error():
    features, truth, groups = sample(20, 4, 2)
    features[4] = np.nan
    with pytest.raises(UserError, match="1 of 20 rows"):
        fit_probe(features, truth, groups, "multiclass")


def test_groups_must_match_the_rows():
    features, truth, groups = sample(20, 4, 2)
    with pytest.raises(ValueError, match="groups"):
        fit_probe(features, truth, groups[:-1], "multiclass")


def test_the_time_cap_is_recorded():
    features, truth, groups = sample(60, 30, 3)
    probe = fit_probe(features, truth, groups, "multiclass", replace(SETTINGS, time_cap_seconds=0))
    assert probe.capped_
    assert not probe.converged_.all()
    np.testing.assert_allclose(probe.predict_proba(features), 1 / 3)  # the class frequencies


@pytest.mark.parametrize("grid", [(), (1.0, 0.1), (0.0, 1.0), (1.0, 1.0)])
def test_the_grid_of_c_is_ascending_and_positive(grid):
    with pytest.raises(ValueError, match="c_grid"):
        ProbeSettings(c_grid=grid)


# --- the fitted probe ----------------------------------------------------------------------------


def hand_made(task="multiclass"):
    n_problems = 1 if task == "multiclass" else 3
    return FittedProbe(
        task=task,
        coef_=np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]),
        intercept_=np.array([0.0, 1.0, 0.0]),
        c_=np.full(n_problems, 0.1),
        c_grid_=np.array([0.1, 1.0]),
        oof_log_loss_=np.full((n_problems, 2), 0.5),
        folds_=np.full(n_problems, 5),
        n_train_=10,
        n_iter_=np.full(n_problems, 7),
        gradient_norm_=np.full(n_problems, 1e-3),
        objective_=np.full(n_problems, 3.0),
        converged_=np.full(n_problems, True),
        capped_=False,
        floor_classes_=np.array([2]),
        floor_probabilities_=np.array([0.1]),
    )


def test_multiclass_probabilities_by_hand():
    probability = hand_made().predict_proba(np.array([[2.0, -1.0], [0.0, 0.0]], np.float32))
    first = 0.9 * np.exp(2) / (np.exp(2) + np.exp(-1))
    second = 0.9 / (1 + np.e)
    np.testing.assert_allclose(
        probability, [[first, 0.9 - first, 0.1], [second, 0.9 - second, 0.1]], rtol=1e-14
    )


def test_multilabel_probabilities_by_hand():
    probability = hand_made("multilabel").predict_proba(np.array([[2.0, -1.0]], np.float32))
    np.testing.assert_allclose(
        probability, [[1 / (1 + np.exp(-2)), 1 / (1 + np.exp(1)), 0.1]], rtol=1e-14
    )


def test_extreme_logits_stay_finite():
    extreme = np.array([[1e5, -1e5], [-1e5, 1e5]], np.float32)
    for task in ("multiclass", "multilabel"):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            probability = hand_made(task).predict_proba(extreme)
        assert np.isfinite(probability).all()
        assert ((probability >= 0) & (probability <= 1)).all()


def test_features_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"\(m, 2\)"):
        hand_made().predict_proba(np.ones((3, 4)))


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_save_and_load_keep_every_field(tmp_path, task):
    probe = hand_made(task)
    probe.save(tmp_path / "probe.npz")
    loaded = FittedProbe.load(tmp_path / "probe.npz")
    for field in fields(FittedProbe):
        saved, read = getattr(probe, field.name), getattr(loaded, field.name)
        np.testing.assert_array_equal(saved, read)
        assert type(saved) is type(read)
    assert [p.name for p in tmp_path.iterdir()] == ["probe.npz"]


def test_a_truncated_or_changed_file_is_a_user_error_that_names_it(tmp_path):
    path = tmp_path / "probe.npz"
    hand_made().save(path)
    whole = path.read_bytes()
    at = whole.index(np.array([0.1, 1.0]).tobytes())  # inside the data of c_grid_
    damaged = {
        "empty": b"",
        "short": whole[: len(whole) // 2],
        "end cut off": whole[:-4],
        "bit flip": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "text": b"not a probe",
    }
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"probe\.npz"):
            FittedProbe.load(path)


def test_a_file_of_another_content_is_a_user_error(tmp_path):
    path = tmp_path / "probe.npz"
    with pytest.raises(UserError, match="is missing"):
        FittedProbe.load(path)
    np.savez(path, coef_=np.ones(3))
    with pytest.raises(UserError, match="no checksum"):
        FittedProbe.load(path)
    write_arrays(path, coef_=np.ones(3))
    with pytest.raises(UserError, match="kind"):
        FittedProbe.load(path)
    np.save(path.with_suffix(".npy"), np.ones(3))
    with pytest.raises(UserError, match=r"probe\.npy"):
        FittedProbe.load(path.with_suffix(".npy"))
    replace(hand_made(), intercept_=np.zeros(2)).save(path)
    with pytest.raises(UserError, match="intercept_"):
        FittedProbe.load(path)
    replace(hand_made(), task="ordinal").save(path)
    with pytest.raises(UserError, match="ordinal"):
        FittedProbe.load(path)
    replace(hand_made(), coef_=np.ones(3)).save(path)
    with pytest.raises(UserError, match=r"probe\.npz"):
        FittedProbe.load(path)


def test_objects_are_never_pickled(tmp_path):
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        replace(hand_made(), c_grid_=np.array([object()])).save(tmp_path / "probe.npz")
    assert not (tmp_path / "probe.npz").exists()


def test_applying_a_probe_needs_neither_torch_nor_scikit_learn():
    code = (
        "import sys, crsbench.probes; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
