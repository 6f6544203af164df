"""Discrimination and calibration: against scikit-learn, brute force and cases done by hand."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from crsbench.metrics.calibration_error import (
    N_BINS,
    adaptive_ece,
    classwise_ece,
    equal_mass_bins,
    expected_calibration_error,
    multiclass_ece,
    reliability_bins,
    top_label,
)
from crsbench.metrics.discrimination import auroc_per_class, macro_auroc, resampled_auroc
from crsbench.metrics.proper_scores import brier_score, log_loss
from crsbench.metrics.run_metrics import renormalised, run_metrics


def multiclass_case(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(n_classes, 0.5), n)
    truth = np.eye(n_classes, dtype=np.int64)[rng.integers(0, n_classes, n)]
    return truth, probabilities


def multilabel_case(n: int, n_labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = (rng.random((n, n_labels)) < 0.3).astype(np.int64)
    return truth, np.clip(rng.random((n, n_labels)) + 0.2 * (truth - 0.5), 0, 1)


def auroc_by_pairs(truth: np.ndarray, scores: np.ndarray) -> float:
    """Share of (positive, negative) pairs in the right order, a tie counting one half."""
    won = [
        1.0 if p > q else 0.5 if p == q else 0.0
        for p in scores[truth == 1]
        for q in scores[truth == 0]
    ]
    return sum(won) / len(won)


def ece_by_loops(confidence: np.ndarray, correct: np.ndarray, n_bins: int = N_BINS) -> float:
    """Σ_b n_b / n |accuracy − confidence| over (b/B, (b+1)/B], the first bin holding 0 too."""
    error = 0.0
    for b in range(n_bins):
        inside = [
            i
            for i, p in enumerate(confidence)
            if (b / n_bins < p or (b == 0 and p == 0)) and p <= (b + 1) / n_bins
        ]
        if inside:
            accuracy = sum(correct[i] for i in inside) / len(inside)
            mean = sum(confidence[i] for i in inside) / len(inside)
            error += len(inside) / len(confidence) * abs(accuracy - mean)
    return error


class TestAuroc:
    @pytest.mark.parametrize("decimals", [16, 2, 1, 0])
    def test_agrees_with_scikit_learn_with_and_without_ties(self, decimals):
        truth, scores = multilabel_case(500, 6, seed=0)
        scores = scores.round(decimals)
        expected = roc_auc_score(truth, scores, average=None)
        np.testing.assert_allclose(auroc_per_class(truth, scores), expected, rtol=0, atol=1e-14)

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(st.booleans(), st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 0.1, 0.3, 7.0])),
            min_size=2,
            max_size=30,
        ).filter(lambda cases: len({label for label, _ in cases}) == 2)
    )
    def test_is_the_share_of_pairs_in_the_right_order(self, cases):
        truth = np.array([[label] for label, _ in cases], dtype=int)
        scores = np.array([[score] for _, score in cases])
        assert auroc_per_class(truth, scores)[0] == pytest.approx(
            auroc_by_pairs(truth[:, 0], scores[:, 0]), abs=1e-15
        )

    def test_of_all_ties_is_exactly_one_half(self):
        assert auroc_per_class([[0], [1], [1], [0], [0]], np.full((5, 1), 0.3)).tolist() == [0.5]

    def test_of_perfect_and_of_inverted_order(self):
        truth = np.array([[0, 0], [0, 0], [1, 1]])
        assert auroc_per_class(truth, [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]).tolist() == [1.0, 0.0]

    def test_is_undefined_for_an_absent_class_and_for_the_only_class(self):
        truth = np.array([[1, 0, 1], [1, 0, 0]])
        assert np.isnan(auroc_per_class(truth, np.full((2, 3), 0.5))).tolist() == [
            True,
            True,
            False,
        ]

    def test_macro_mean_leaves_undefined_classes_out(self):
        truth = np.array([[1, 0, 1], [1, 0, 0], [1, 0, 0]])
        scores = np.array([[0.2, 0.1, 0.5], [0.1, 0.2, 0.6], [0.3, 0.3, 0.1]])
        assert macro_auroc(truth, scores) == 0.5
        assert np.isnan(macro_auroc(truth[:, :2], scores[:, :2]))

    def test_refuses_nan_scores_and_labels_that_are_not_binary(self):
        with pytest.raises(ValueError, match="NaN"):
            auroc_per_class([[0], [1]], [[np.nan], [0.5]])
        with pytest.raises(ValueError, match="only 0 and 1"):
            auroc_per_class([[0], [2]], [[0.1], [0.5]])

    def test_of_resamples_is_the_auroc_of_the_repeated_cases(self):
        rng = np.random.default_rng(1)
        truth = (rng.random((60, 3)) < 0.4).astype(int)
        scores = rng.random((60, 3)).round(1)
        weights = rng.integers(0, 3, size=(5, 60))
        expected = [
            roc_auc_score(np.repeat(truth, w, axis=0), np.repeat(scores, w, axis=0), average=None)
            for w in weights
        ]
        np.testing.assert_allclose(resampled_auroc(truth, scores, weights), expected, atol=1e-12)

    def test_is_undefined_in_a_resample_of_one_class(self):
        values = resampled_auroc([[0], [1]], [[0.2], [0.7]], [[1, 1], [2, 0], [0, 2]])
        np.testing.assert_array_equal(values, [[1.0], [np.nan], [np.nan]])


class TestExpectedCalibrationError:
    @pytest.mark.parametrize(
        ("p", "outcome", "error"), [(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 0, 1)]
    )
    def test_at_zero_and_one(self, p, outcome, error):
        assert expected_calibration_error([p], [outcome]) == error

    def test_zero_falls_in_the_first_bin_and_one_in_the_last(self):
        count = reliability_bins([0.0, 1.0, 1.0], [0, 1, 1]).count
        assert count.shape == (15,)
        assert (count[0], count[-1], count.sum()) == (1, 2, 3)

    def test_an_inner_edge_belongs_to_the_bin_below_it(self):
        edges = np.arange(1, 15) / 15
        assert reliability_bins(edges, np.zeros(14)).count.tolist() == [1] * 14 + [0]
        above = np.nextafter(edges, 1)
        assert reliability_bins(above, np.zeros(14)).count.tolist() == [0] + [1] * 14

    @pytest.mark.parametrize("fifths", [1, 2, 3, 4])
    def test_a_vote_of_five_neighbours_is_an_exact_edge(self, fifths):
        assert reliability_bins([fifths / 5], [1]).count[3 * fifths - 1] == 1

    def test_of_equal_confidences_is_their_distance_to_the_accuracy(self):
        assert expected_calibration_error([0.7] * 4, [1, 1, 0, 0]) == pytest.approx(0.2, abs=1e-15)

    def test_of_one_case(self):
        assert expected_calibration_error([0.25], [1]) == 0.75

    def test_an_empty_bin_is_nan_and_weighs_nothing(self):
        bins = reliability_bins([0.0, 1.0], [0, 1])
        assert np.isnan(bins.accuracy[1:-1]).all()
        assert np.isnan(bins.mean_confidence[1:-1]).all()
        assert float(bins.error()) == 0.0

    def test_by_hand(self):
        # Bins of two: {0.1, 0.3} with accuracy 1/2, {0.6, 0.8, 1.0} with 2/3.
        error = expected_calibration_error([0.1, 0.3, 0.6, 0.8, 1.0], [0, 1, 1, 0, 1], n_bins=2)
        assert error == pytest.approx(2 / 5 * 0.3 + 3 / 5 * (0.8 - 2 / 3), abs=1e-15)

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.one_of(
                    st.floats(0, 1),
                    st.integers(0, 15).map(lambda k: k / 15),
                ),
                st.integers(0, 1),
            ),
            min_size=1,
            max_size=40,
        )
    )
    def test_agrees_with_a_plain_loop(self, cases):
        confidence, correct = (np.array(column) for column in zip(*cases, strict=True))
        assert expected_calibration_error(confidence, correct) == pytest.approx(
            ece_by_loops(confidence, correct), abs=1e-12
        )

    @pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan])
    def test_refuses_what_is_no_probability(self, bad):
        with pytest.raises(ValueError, match="probabilities must"):
            expected_calibration_error([0.5, bad], [0, 1])

    def test_refuses_no_cases(self):
        with pytest.raises(ValueError, match="at least one case"):
            expected_calibration_error([], [])


class TestCalibrationOfATask:
    def test_multiclass_is_top_label_confidence_against_accuracy(self):
        truth, probabilities = multiclass_case(300, 5, seed=1)
        correct = truth[np.arange(300), probabilities.argmax(axis=1)]
        assert multiclass_ece(truth, probabilities) == pytest.approx(
            ece_by_loops(probabilities.max(axis=1), correct), abs=1e-12
        )

    def test_the_first_of_equally_probable_classes_is_the_prediction(self):
        confidence, correct = top_label([[1, 0, 0], [0, 1, 0]], [[0.4, 0.4, 0.2]] * 2)
        assert confidence.tolist() == [0.4, 0.4]
        assert correct.tolist() == [1, 0]

    def test_classwise_is_the_mean_over_columns(self):
        truth, probabilities = multilabel_case(200, 7, seed=2)
        expected = np.mean(
            [ece_by_loops(p, t) for p, t in zip(probabilities.T, truth.T, strict=True)]
        )
        assert classwise_ece(truth, probabilities) == pytest.approx(expected, abs=1e-12)

    def test_equal_mass_bins_hold_equal_numbers(self):
        rng = np.random.default_rng(3)
        assert equal_mass_bins(rng.random(150), rng.integers(0, 2, 150)).count.tolist() == [10] * 15
        count = equal_mass_bins(rng.random(152), rng.integers(0, 2, 152)).count
        assert set(count.tolist()) == {10, 11}

    def test_equal_confidences_share_an_equal_mass_bin(self):
        confidence = [0.1] * 10 + [0.2] * 5
        assert equal_mass_bins(confidence, [0, 1] * 7 + [0], n_bins=3).count.tolist() == [10, 0, 5]

    def test_adaptive_agrees_with_sorted_slices(self):
        truth, _ = multilabel_case(90, 3, seed=4)
        probabilities = np.random.default_rng(4).random((90, 3))
        errors = []
        for p, t in zip(probabilities.T, truth.T, strict=True):
            slices = np.split(np.argsort(p), 15)
            errors.append(sum(abs(t[s].mean() - p[s].mean()) / 15 for s in slices))
        assert adaptive_ece("multilabel", truth, probabilities) == pytest.approx(
            np.mean(errors), abs=1e-12
        )

    def test_adaptive_multiclass_is_of_the_top_label(self):
        truth, probabilities = multiclass_case(60, 4, seed=5)
        correct = truth[np.arange(60), probabilities.argmax(axis=1)]
        expected = equal_mass_bins(probabilities.max(axis=1), correct).error()
        assert adaptive_ece("multiclass", truth, probabilities) == float(expected)


class TestProperScores:
    def test_multiclass_agree_with_scikit_learn(self):
        truth, probabilities = multiclass_case(400, 6, seed=6)
        assert brier_score("multiclass", truth, probabilities) == pytest.approx(
            brier_score_loss(
                truth.argmax(axis=1), probabilities, labels=range(6), scale_by_half=False
            ),
            abs=1e-12,
        )
        assert log_loss("multiclass", truth, probabilities) == pytest.approx(
            sklearn_log_loss(truth.argmax(axis=1), probabilities, labels=range(6)), abs=1e-12
        )

    def test_multilabel_are_means_of_the_binary_scores(self):
        truth, probabilities = multilabel_case(400, 6, seed=7)
        columns = list(zip(truth.T, probabilities.T, strict=True))
        assert brier_score("multilabel", truth, probabilities) == pytest.approx(
            np.mean([brier_score_loss(t, p) for t, p in columns]), abs=1e-12
        )
        assert log_loss("multilabel", truth, probabilities) == pytest.approx(
            np.mean([sklearn_log_loss(t, p, labels=[0, 1]) for t, p in columns]), abs=1e-12
        )

    def test_a_sure_and_wrong_prediction_costs_36_nats(self):
        assert log_loss("multilabel", [[1]], [[0.0]]) == pytest.approx(52 * np.log(2), abs=1e-12)
        assert log_loss("multiclass", [[1, 0]], [[0.0, 1.0]]) == pytest.approx(52 * np.log(2))

    def test_the_worst_brier_scores(self):
        assert brier_score("multiclass", [[1, 0]], [[0.0, 1.0]]) == 2.0
        assert brier_score("multilabel", [[1, 0]], [[0.0, 1.0]]) == 1.0


class TestUnknownTruth:
    """Truth −1: each label over the cases of which it is known."""

    def case(self):
        truth, probabilities = multilabel_case(150, 4, seed=15)
        probabilities[::5] = probabilities[1]
        truth = np.where(np.random.default_rng(16).random(truth.shape) < 0.4, -1, truth)
        return truth, probabilities

    def test_auroc_is_that_of_the_known_cases(self):
        truth, probabilities = self.case()
        for k, auroc in enumerate(auroc_per_class(truth, probabilities)):
            known = truth[:, k] >= 0
            wanted = roc_auc_score(truth[known, k], probabilities[known, k])
            assert auroc == pytest.approx(wanted, abs=1e-12)

    def test_resamples_draw_known_cases_only(self):
        truth, probabilities = self.case()
        weights = np.random.default_rng(17).integers(0, 3, (5, 150))
        found = resampled_auroc(truth, probabilities, weights)
        for r, k in np.ndindex(5, 4):
            known = truth[:, k] >= 0
            drawn = np.repeat(np.flatnonzero(known), weights[r, known])
            wanted = roc_auc_score(truth[drawn, k], probabilities[drawn, k])
            assert found[r, k] == pytest.approx(wanted, abs=1e-12)

    def test_every_metric_is_the_mean_over_labels_of_their_known_cases(self):
        truth, probabilities = self.case()
        metrics = run_metrics(
            "multilabel", truth, probabilities, list("abcd"), excluded_classes=["d"]
        )
        columns = [(truth[:, k] >= 0, k) for k in range(4)]
        pairs = [(truth[known, k], probabilities[known, k]) for known, k in columns]
        aurocs = [roc_auc_score(*pair) for pair in pairs]
        assert metrics.macro_auroc == pytest.approx(np.mean(aurocs), abs=1e-12)
        assert metrics.macro_auroc_core == pytest.approx(np.mean(aurocs[:3]), abs=1e-12)
        briers = [brier_score_loss(*pair) for pair in pairs]
        assert metrics.brier == pytest.approx(np.mean(briers), abs=1e-12)
        losses = [sklearn_log_loss(*pair) for pair in pairs]
        assert metrics.log_loss == pytest.approx(np.mean(losses), abs=1e-12)
        errors = [expected_calibration_error(p, t) for t, p in pairs]
        assert metrics.ece == metrics.classwise_ece == pytest.approx(np.mean(errors), abs=1e-12)
        masses = [float(equal_mass_bins(p, t).error()) for t, p in pairs]
        assert metrics.adaptive_ece == pytest.approx(np.mean(masses), abs=1e-12)
        assert metrics.n_test == 150
        counts = [bins.count.sum() for bins in metrics.reliability.values()]
        assert counts == [known.sum() for known, _ in columns]

    def test_a_label_without_known_cases_or_negatives_is_undefined_and_named(self):
        truth, probabilities = self.case()
        truth[:, 1] = -1
        truth[truth[:, 2] == 0, 2] = -1
        metrics = run_metrics("multilabel", truth, probabilities, list("abcd"))
        assert metrics.undefined_classes == ("b", "c")
        assert metrics.auroc["b"] is None
        assert metrics.n_classes_defined == 2
        assert list(metrics.reliability) == ["a", "c", "d"]
        content = metrics.to_json()
        assert json.loads(json.dumps(content, allow_nan=False)) == content

    def test_has_the_same_bits_in_any_order_of_the_cases(self):
        truth, probabilities = self.case()
        first = run_metrics("multilabel", truth, probabilities, list("abcd")).to_json()
        order = np.random.default_rng(18).permutation(150)
        again = run_metrics("multilabel", truth[order], probabilities[order], list("abcd"))
        assert again.to_json() == first

    def test_is_for_labels_not_for_classes_and_needs_a_known_case(self):
        with pytest.raises(ValueError, match="only 0 and 1"):
            run_metrics("multiclass", [[1, -1]], [[0.5, 0.5]], ["a", "b"])
        with pytest.raises(ValueError, match="of known truth"):
            run_metrics("multilabel", [[-1, -1]], [[0.5, 0.5]], ["a", "b"])
        with pytest.raises(ValueError, match="only 0 and 1"):
            brier_score("multilabel", [[1, -1]], [[0.5, 0.5]])


class TestRenormalised:
    def test_is_the_share_of_the_rows_mass(self):
        rows = renormalised([[0.3, 0.1], [0.0, 0.2]])
        assert rows == pytest.approx(np.array([[0.75, 0.25], [0.0, 1.0]]))

    def test_a_row_without_mass_is_uniform(self):
        assert renormalised([[0.0, 0.0, 0.0, 0.0]]).tolist() == [[0.25] * 4]

    def test_a_mass_of_the_smallest_numbers_still_sums_to_one(self):
        rows = renormalised([[5e-324, 5e-324], [1e-300, 3e-300]])
        assert rows.sum(axis=1) == pytest.approx(1)
        assert rows[1] == pytest.approx([0.25, 0.75])


class TestRunMetrics:
    @pytest.mark.parametrize(
        ("task", "case"), [("multiclass", multiclass_case), ("multilabel", multilabel_case)]
    )
    def test_holds_every_metric_as_strict_json(self, task, case):
        truth, probabilities = case(120, 4, seed=8)
        content = run_metrics(task, truth, probabilities, list("abcd")).to_json()
        assert json.loads(json.dumps(content, allow_nan=False)) == content
        assert content["macro_auroc"] == macro_auroc(truth, probabilities)
        assert content["classwise_ece"] == classwise_ece(truth, probabilities)
        assert content["adaptive_ece"] == adaptive_ece(task, truth, probabilities)
        assert content["brier"] == brier_score(task, truth, probabilities)
        assert content["log_loss"] == log_loss(task, truth, probabilities)
        assert (content["n_test"], content["n_classes"], content["n_classes_defined"]) == (
            120,
            4,
            4,
        )

    def test_ece_follows_the_task(self):
        truth, probabilities = multiclass_case(120, 4, seed=9)
        multiclass = run_metrics("multiclass", truth, probabilities, list("abcd"))
        multilabel = run_metrics("multilabel", truth, probabilities, list("abcd"))
        assert multiclass.ece == multiclass_ece(truth, probabilities)
        assert list(multiclass.reliability) == ["top_label"]
        assert multilabel.ece == multilabel.classwise_ece == multiclass.classwise_ece
        assert list(multilabel.reliability) == list("abcd")

    def test_the_bins_of_each_label_give_its_error(self):
        truth, probabilities = multilabel_case(120, 3, seed=10)
        metrics = run_metrics("multilabel", truth, probabilities, list("abc"))
        errors = [float(bins.error()) for bins in metrics.reliability.values()]
        assert errors == [
            expected_calibration_error(p, t) for p, t in zip(probabilities.T, truth.T, strict=True)
        ]
        assert metrics.ece == pytest.approx(np.mean(errors), abs=1e-15)

    def test_names_the_classes_without_auroc(self):
        truth = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
        probabilities = np.array([[0.6, 0.2, 0.2], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])
        metrics = run_metrics("multiclass", truth, probabilities, ["mel", "nv", "df"])
        assert metrics.undefined_classes == ("df",)
        assert metrics.n_classes_defined == 2
        assert metrics.auroc == {"mel": 0.5, "nv": 1.0, "df": None}
        assert metrics.macro_auroc == 0.75

    def test_of_one_class_only_has_no_macro_auroc(self):
        metrics = run_metrics("multiclass", [[1, 0]], [[0.75, 0.25]], ["mel", "nv"])
        assert metrics.macro_auroc is None
        assert metrics.undefined_classes == ("mel", "nv")
        assert metrics.ece == 0.25
        json.dumps(metrics.to_json(), allow_nan=False)

    @pytest.mark.parametrize(
        ("task", "case"), [("multiclass", multiclass_case), ("multilabel", multilabel_case)]
    )
    def test_has_the_same_bits_in_any_order_of_the_cases(self, task, case):
        truth, probabilities = case(333, 5, seed=11)
        probabilities[::7] = probabilities[3]
        first = run_metrics(task, truth, probabilities, list("abcde")).to_json()
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(333)
            again = run_metrics(task, truth[order], probabilities[order], list("abcde")).to_json()
            assert again == first

    def test_takes_float32_and_any_memory_layout(self):
        truth, probabilities = multilabel_case(50, 4, seed=12)
        single = probabilities.astype(np.float32)
        wanted = run_metrics("multilabel", truth, single.astype(float), list("abcd")).to_json()
        got = run_metrics("multilabel", np.asfortranarray(truth), single.T.copy().T, list("abcd"))
        assert got.to_json() == wanted

    def test_the_core_leaves_out_the_excluded_classes(self):
        truth, probabilities = multilabel_case(120, 4, seed=13)
        metrics = run_metrics(
            "multilabel", truth, probabilities, list("abcd"), excluded_classes=["d", "b"]
        )
        assert metrics.macro_auroc_core == pytest.approx(
            (metrics.auroc["a"] + metrics.auroc["c"]) / 2, abs=1e-15
        )
        assert metrics.macro_auroc == macro_auroc(truth, probabilities)
        plain = run_metrics("multilabel", truth, probabilities, list("abcd"))
        assert plain.macro_auroc_core is None
        truth[:, [0, 2]] = 0  # nothing of the core has a positive case
        metrics = run_metrics(
            "multilabel", truth, probabilities, list("abcd"), excluded_classes=["d", "b"]
        )
        assert metrics.macro_auroc_core is None
        assert metrics.macro_auroc is not None

    def test_scores_rank_in_place_of_the_probabilities(self):
        truth, probabilities = multiclass_case(120, 3, seed=14)
        scores = -probabilities
        metrics = run_metrics("multiclass", truth, probabilities, list("abc"), scores=scores)
        plain = run_metrics("multiclass", truth, probabilities, list("abc"))
        assert metrics.macro_auroc == macro_auroc(truth, scores)
        assert metrics.ece == plain.ece
        assert metrics.log_loss == plain.log_loss

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"truth": np.zeros((0, 2)), "probabilities": np.zeros((0, 2))}, "at least one test"),
            ({"truth": [[1, 0, 0]]}, r"both be \(n, K\)"),
            ({"truth": [[1, 1]]}, "one-hot"),
            ({"truth": [[2, 0]]}, "only 0 and 1"),
            ({"probabilities": [[0.5, 0.4]]}, "sum to one.*off by 0.1"),
            ({"probabilities": [[1.2, -0.2]]}, r"lie in \[0, 1\], found -0.2 to 1.2"),
            ({"probabilities": [[np.nan, 0.5]]}, "finite"),
            ({"probabilities": [[np.inf, 0.5]]}, "finite"),
            ({"classes": ["a"]}, "2 different names"),
            ({"classes": ["a", "a"]}, "2 different names"),
            ({"task": "regression"}, "'multiclass' or 'multilabel'"),
        ],
    )
    def test_refuses_bad_input(self, change, message):
        good = {
            "task": "multiclass",
            "truth": [[1, 0]],
            "probabilities": [[0.5, 0.5]],
            "classes": ["a", "b"],
        }
        with pytest.raises(ValueError, match=message):
            run_metrics(**(good | change))
