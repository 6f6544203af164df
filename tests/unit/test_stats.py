"""Every statistic against SciPy and against brute force or a case done by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.statistics import (
    PairCounts,
    competition_rank,
    draw_groups,
    group_bootstrap,
    inverted_pairs,
    kendall_tau,
    mean_absolute_rank_shift,
    pearson,
    percentile_interval,
    spearman_rho,
    t_interval,
    top_k_overlap,
    welch_test,
)

SERIES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=12).filter(
    lambda pairs: all(len(set(column)) > 1 for column in zip(*pairs, strict=True))
)


def ranking_with_inversions(n: int, inversions: int) -> list[int]:
    """A permutation of n items in which exactly so many pairs are out of order."""
    order = list(range(n))
    while inversions:
        i = next(i for i in range(n - 1) if order[i] < order[i + 1])
        order[i], order[i + 1] = order[i + 1], order[i]
        inversions -= 1
    return order


class TestRankAgreement:
    def test_21_of_105_pairs_inverted_are_tau_0_600(self):
        auroc, crs = list(range(15)), ranking_with_inversions(15, 21)
        assert inverted_pairs(auroc, crs) == PairCounts(inverted=21, tied=0, pairs=105)
        assert kendall_tau(auroc, crs) == pytest.approx(0.600, abs=1e-12)

    def test_ties_share_the_best_rank(self):
        assert competition_rank([0.5, 0.9, 0.7, 0.7]).tolist() == [4, 1, 2, 2]

    def test_a_missing_value_has_no_rank_and_takes_none(self):
        ranks = competition_rank([[0.5, np.nan, 0.7], [1, 2, 3]])
        np.testing.assert_array_equal(ranks, [[2, np.nan, 1], [3, 2, 1]])

    @settings(deadline=None)
    @given(SERIES)
    def test_agree_with_scipy_and_brute_force(self, pairs):
        a, b = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
        np.testing.assert_array_equal(
            competition_rank(a), scipy_stats.rankdata(-a, method="min").astype(float)
        )
        assert kendall_tau(a, b) == pytest.approx(scipy_stats.kendalltau(a, b)[0], abs=1e-12)
        assert spearman_rho(a, b) == pytest.approx(
            np.corrcoef(scipy_stats.rankdata(a), scipy_stats.rankdata(b))[0, 1], abs=1e-12
        )
        signs = [(a[i] - a[j]) * (b[i] - b[j]) for i, j in itertools.combinations(range(len(a)), 2)]
        inverted, tied = sum(s < 0 for s in signs), sum(s == 0 for s in signs)
        assert inverted_pairs(a, b) == PairCounts(inverted, tied, len(signs))
        concordant = len(signs) - inverted - tied
        untied = [math.comb(len(a), 2) - sum(math.comb(n, 2) for n in _counts(x)) for x in (a, b)]
        assert kendall_tau(a, b) == pytest.approx(
            (concordant - inverted) / math.sqrt(untied[0] * untied[1]), abs=1e-12
        )

    def test_are_undefined_without_variation(self):
        assert math.isnan(kendall_tau([1, 1], [1, 2]))
        assert math.isnan(spearman_rho([1, 1], [1, 2]))
        assert math.isnan(spearman_rho([1], [1]))
        assert math.isnan(mean_absolute_rank_shift([], []))

    def test_mean_absolute_shift_by_hand(self):
        assert mean_absolute_rank_shift([9, 8, 7, 6], [6, 9, 7, 8]) == (3 + 1 + 0 + 2) / 4

    def test_top_k_overlap_by_hand(self):
        assert top_k_overlap([9, 8, 7, 1], [9, 1, 7, 8], k=3) == 2 / 3
        # A tie for the second place makes three of the two best.
        assert top_k_overlap([9, 8, 7], [9, 8, 8], k=2) == 2 / 3
        with pytest.raises(ValueError, match="between 1 and the number of items, 2, got 3"):
            top_k_overlap([1, 2], [2, 1], k=3)

    def test_refuse_missing_values_and_unequal_lengths(self):
        with pytest.raises(ValueError, match="1 are NaN"):
            kendall_tau([1, np.nan], [1, 2])
        with pytest.raises(ValueError, match="one length, got 2 and 3"):
            inverted_pairs([1, 2], [1, 2, 3])


def _counts(values: np.ndarray) -> list[int]:
    return np.unique(values, return_counts=True)[1].tolist()


class TestWelch:
    def test_by_the_formula(self):
        a, b = np.array([0.70, 0.74, 0.71, 0.69, 0.75]), np.array([0.52, 0.60, 0.55])
        test = welch_test(a, b)
        va, vb = a.var(ddof=1) / 5, b.var(ddof=1) / 3
        df = (va + vb) ** 2 / (va**2 / 4 + vb**2 / 2)
        t = (a.mean() - b.mean()) / math.sqrt(va + vb)
        margin = scipy_stats.t.ppf(0.975, df) * math.sqrt(va + vb)
        assert test.t == pytest.approx(t, rel=1e-12)
        assert test.df == pytest.approx(df, rel=1e-12)
        assert test.p == pytest.approx(2 * scipy_stats.t.sf(t, df), rel=1e-10)
        assert (test.low, test.high) == pytest.approx(
            (test.difference - margin, test.difference + margin), rel=1e-10
        )

    def test_refuses_groups_it_cannot_compare(self):
        with pytest.raises(ValueError, match="two values in each group, got 1 and 2"):
            welch_test([1], [1, 2])
        with pytest.raises(ValueError, match="values vary"):
            welch_test([1, 1], [2, 2])


class TestPearson:
    def test_by_the_formula(self):
        rng = np.random.default_rng(0)
        a = rng.normal(size=43)
        b = 0.6 * a + rng.normal(size=43)
        result = pearson(a, b)
        r = np.corrcoef(a, b)[0, 1]
        margin = scipy_stats.norm.ppf(0.975) / math.sqrt(40)
        t = r * math.sqrt(41 / (1 - r**2))
        assert result.r == pytest.approx(r, abs=1e-12)
        assert result.low == pytest.approx(math.tanh(math.atanh(r) - margin), abs=1e-12)
        assert result.high == pytest.approx(math.tanh(math.atanh(r) + margin), abs=1e-12)
        assert result.p == pytest.approx(2 * scipy_stats.t.sf(t, 41), rel=1e-9)
        assert result.n == 43

    def test_of_too_little_is_undefined(self):
        assert math.isnan(pearson([1, 1, 1], [1, 2, 3]).r)
        three = pearson([1, 2, 3], [1, 2, 4])
        assert not math.isnan(three.r)
        assert math.isnan(three.low)


class TestIntervals:
    def test_students_is_that_of_scipy(self):
        values = np.random.default_rng(0).normal(size=7)
        low, high = scipy_stats.t.interval(0.9, 6, values.mean(), scipy_stats.sem(values))
        assert t_interval(values, 0.9) == pytest.approx((values.mean(), low, high), rel=1e-14)

    def test_students_of_too_little_is_missing(self):
        assert np.isnan(t_interval([])).all()
        assert t_interval([2.0]).estimate == 2.0
        assert np.isnan(t_interval([2.0])[1:]).all()

    @pytest.mark.parametrize("n", [2, 3, 20, 64, 999, 1000, 10_000])
    def test_the_percentile_interval_has_the_bits_of_numpys_quantile(self, n):
        values = np.random.default_rng(n).normal(size=(n, 5))
        for level in (0.5, 0.9, 0.95):
            wanted = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
            assert np.array_equal(percentile_interval(values, level), wanted)


class TestGroupBootstrap:
    def test_takes_groups_whole(self):
        seen = []

        def weights_of(weights):
            seen.append(weights)
            return weights.astype(float)

        result = group_bootstrap(["p", "q", "p", "r"], weights_of, "whole", replicates=100)
        assert result.values.shape == (100, 4)
        assert result.n_redrawn == 0
        assert (result.values[:, 0] == result.values[:, 2]).all()
        assert (result.values[:, [0, 1, 3]].sum(axis=1) == 3).all()
        assert len(np.unique(result.values, axis=0)) > 5

    def test_draws_what_the_weights_of_all_resamples_are(self):
        groups = ["p", "q", "p", "r", "s"]
        result = group_bootstrap(groups, lambda w: w.astype(float), "same", replicates=150)
        assert np.array_equal(result.values, draw_groups(groups, "same", 150)[1:])
        with pytest.raises(ValueError, match="at least one test case"):
            draw_groups([], "none", 10)

    def test_redraws_resamples_of_one_class_and_counts_them(self):
        truth, scores = np.array([[1], [0], [0], [0]]), np.array([[0.6], [0.2], [0.8], [0.1]])
        result = group_bootstrap(
            range(4), lambda w: resampled_auroc(truth, scores, w), "redraw", replicates=2000
        )
        assert len(result.values) == 2000
        assert not np.isnan(result.values).any()
        # A resample of four misses the one positive with (3/4)^4, and all negatives with (1/4)^4.
        undefined = (3 / 4) ** 4 + (1 / 4) ** 4
        share = result.n_redrawn / (2000 + result.n_redrawn)
        assert share == pytest.approx(undefined, abs=0.03)

    def test_is_paired_across_encoders(self):
        groups = np.arange(50) // 2
        rng = np.random.default_rng(2)
        truth = (rng.random((50, 1)) < 0.5).astype(int)
        a, b = rng.random((50, 1)), rng.random((50, 1))
        first, second = (
            group_bootstrap(groups, lambda w, s=s: resampled_auroc(truth, s, w), "paired", 50)
            for s in (a, b)
        )
        both = group_bootstrap(
            groups,
            lambda w: np.hstack([resampled_auroc(truth, s, w) for s in (a, b)]),
            "paired",
            50,
        )
        np.testing.assert_array_equal(np.hstack([first.values, second.values]), both.values)

    def test_gives_up_on_a_statistic_that_is_never_defined(self):
        with pytest.raises(ValueError, match="defined in only 0 of"):
            group_bootstrap([0, 1], lambda w: np.full((len(w), 1), np.nan), "never")
