"""Splits go by group, subsamples nest, and nothing depends on the order of rows."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crsbench.core.errors import UserError
from crsbench.data.manifest import Manifest
from crsbench.data.splits import CALIBRATION, TEST, TRAIN, choose_test, make_split

FRACTIONS = (1, 5, 10, 25, 100)


def manifest_of(groups: np.ndarray, truth: np.ndarray, dataset: str = "d") -> Manifest:
    ids = np.array([f"image{index:06d}" for index in range(len(groups))])
    classes = tuple(f"class{k}" for k in range(truth.shape[1]))
    return Manifest(dataset, "multiclass", classes, "d", ids, ids, groups, truth, pd.DataFrame())


def random_manifest(seed: int, n: int, n_groups: int, n_classes: int, multilabel: bool) -> Manifest:
    random = np.random.default_rng(seed)
    groups = np.array([f"g{g}" for g in random.integers(n_groups, size=n)])
    if multilabel:
        truth = (random.random((n, n_classes)) < random.uniform(0.02, 0.5, n_classes)).astype(
            np.int8
        )
    else:
        shares = random.dirichlet(np.ones(n_classes))
        truth = np.eye(n_classes, dtype=np.int8)[random.choice(n_classes, n, p=shares)]
    return manifest_of(groups, truth)


manifests = st.builds(
    random_manifest,
    st.integers(0, 10_000),
    st.integers(200, 500),
    st.integers(100, 200),
    st.integers(2, 8),
    st.booleans(),
)


@given(manifests, st.integers(0, 4))
def test_no_group_crosses_and_fractions_nest(manifest: Manifest, seed: int) -> None:
    is_test = choose_test(manifest, 0.2)
    split = make_split(manifest, is_test, seed, FRACTIONS, 0.125)
    assert set(split.part) == {TRAIN, CALIBRATION, TEST}
    assert ((split.part == TEST) == is_test).all()
    for group in np.unique(manifest.groups):
        rows = manifest.groups == group
        assert len(set(split.part[rows])) == 1
        assert len(set(split.percent[rows])) == 1
    inside = [split.labelled(percent) for percent in FRACTIONS]
    for small, large in pairwise(inside):
        assert (small <= large).all()
    assert (inside[-1] == (split.part == TRAIN)).all()


@given(manifests, st.integers(0, 4))
def test_every_class_of_the_train_part_is_in_every_fraction_and_floors_are_recorded(
    manifest: Manifest, seed: int
) -> None:
    split = make_split(manifest, choose_test(manifest, 0.2), seed, FRACTIONS, 0.125)
    train = manifest.truth[split.part == TRAIN].sum(axis=0)
    for percent in FRACTIONS:
        inside = manifest.truth[split.labelled(percent)].sum(axis=0)
        assert ((inside > 0) == (train > 0)).all()
    assert split.floors[100] == ()
    for small, large in pairwise(FRACTIONS):
        assert set(split.floors[large]) <= set(split.floors[small])


@given(manifests, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(manifest: Manifest, random: object) -> None:
    order = np.arange(len(manifest.image_ids))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = manifest_of(manifest.groups[order], manifest.truth[order])
    one = make_split(manifest, choose_test(manifest, 0.2), 1, FRACTIONS, 0.125)
    two = make_split(shuffled, choose_test(shuffled, 0.2), 1, FRACTIONS, 0.125)
    assert (one.part[order] == two.part).all()
    assert (one.percent[order] == two.percent).all()


@given(st.integers(0, 1000), st.integers(1, 30))
def test_each_stratum_is_divided_within_one_group(seed: int, largest: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, largest + 1, 300)
    groups = np.repeat([f"g{g}" for g in range(300)], sizes)
    classes = random.choice(4, 300, p=[0.6, 0.25, 0.1, 0.05])
    truth = np.eye(4, dtype=np.int8)[np.repeat(classes, sizes)]
    is_test = choose_test(manifest_of(groups, truth), 0.2)
    for k in range(4):
        of_class = truth[:, k] == 1
        wanted = 0.2 * of_class.sum()
        assert abs(is_test[of_class].sum() - wanted) <= largest


def test_shares_are_met_on_a_large_set() -> None:
    manifest = random_manifest(0, 20_000, 20_000, 5, multilabel=False)
    split = make_split(manifest, choose_test(manifest, 0.2), 0, FRACTIONS, 0.125)
    parts = {part: (split.part == part).mean() for part in (TEST, CALIBRATION, TRAIN)}
    assert parts == pytest.approx({TEST: 0.2, CALIBRATION: 0.1, TRAIN: 0.7}, abs=1e-3)
    n_train = (split.part == TRAIN).sum()
    for percent in FRACTIONS:
        assert split.labelled(percent).sum() == pytest.approx(n_train * percent / 100, abs=5)


def test_seeds_share_the_test_part_and_differ_in_the_rest() -> None:
    manifest = random_manifest(3, 500, 300, 4, multilabel=False)
    is_test = choose_test(manifest, 0.2)
    one, two = (make_split(manifest, is_test, seed, FRACTIONS, 0.125) for seed in (0, 1))
    assert ((one.part == TEST) == (two.part == TEST)).all()
    assert (one.part != two.part).any()
    assert (one.percent != two.percent).any()


def test_a_rare_class_gets_one_group_at_one_percent_and_that_is_recorded() -> None:
    truth = np.zeros((1000, 2), dtype=np.int8)
    truth[:, 0] = 1
    truth[:20] = [0, 1]
    manifest = manifest_of(np.array([f"g{i}" for i in range(1000)]), truth)
    split = make_split(manifest, choose_test(manifest, 0.2), 0, FRACTIONS, 0.125)
    assert manifest.truth[split.labelled(1)].sum(axis=0).tolist() == [7, 1]
    assert split.floors == {1: ("class1",), 5: (), 10: (), 25: (), 100: ()}


def test_too_few_groups_are_reported() -> None:
    truth = np.eye(2, dtype=np.int8)[[0, 1, 0, 1]]
    one_group = manifest_of(np.array(["g"] * 4), truth)
    with pytest.raises(UserError, match="'d' has 1 groups, too few for a test part"):
        choose_test(one_group, 0.2)
    four = manifest_of(np.array(["a", "b", "c", "e"]), truth)
    with pytest.raises(UserError, match="'d' has 4 groups, too few for a calibration part"):
        make_split(four, np.array([True, False, False, False]), 0, FRACTIONS, 0.125)


def test_an_unknown_label_is_no_member_and_no_stratum() -> None:
    """Splits of a set whose negatives are unknown are those of the set as it is."""
    manifest = random_manifest(3, 400, 200, 4, multilabel=True)
    hidden = np.random.default_rng(1).random(manifest.truth.shape) < 0.5
    truth = np.where(hidden & (manifest.truth == 0), -1, manifest.truth).astype(np.int8)
    unknown = manifest_of(manifest.groups, truth)
    is_test = choose_test(manifest, 0.2)
    assert (choose_test(unknown, 0.2) == is_test).all()
    split = make_split(manifest, is_test, 0, FRACTIONS, 0.125)
    other = make_split(unknown, is_test, 0, FRACTIONS, 0.125)
    assert (other.part == split.part).all()
    assert (other.percent == split.percent).all()
    assert other.floors == split.floors
