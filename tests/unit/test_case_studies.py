"""Operating points, selective and conformal prediction, shift detection: formulas and edges."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.covariance import OAS
from sklearn.metrics import confusion_matrix, roc_auc_score
from sklearn.neighbors import NearestNeighbors as SklearnNeighbours

from crsbench.metrics.calibration_error import (
    expected_calibration_error,
    resampled_calibration_error,
)
from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.statistics import draw_groups, holm, percentile_interval
from crsbench.probes.fitted import Decisions
from crsbench.studies.operating_points import (
    Aim,
    Target,
    counted_rates,
    net_benefit,
    net_benefit_of,
    operating_points,
    operating_points_of,
    ranked_target,
)
from crsbench.studies.selective_prediction import (
    RiskCoverage,
    conformal_limit,
    conformal_sets_of,
    selective_prediction_of,
)
from crsbench.studies.shift_detection import (
    Mahalanobis,
    NearestNeighbours,
    SeenImages,
    ShiftDetectionSettings,
    chosen_images,
    shift_detection_of,
)
from worlds.cells import CLASSES, a_test_set, cell_of, drawn_cases, softmax, some_cases

# --- resampled metrics ----------------------------------------------------------------------------


def test_resampled_metrics_are_those_of_repeated_cases() -> None:
    random = np.random.default_rng(1)
    confidence, correct = random.random(60).round(2), random.integers(0, 2, 60)
    confidence[:4] = [0, 1, 3 / 5, 1 / 15]  # both ends, and exactly on inner edges
    weights = random.integers(0, 4, (5, 60))
    found = resampled_calibration_error(confidence, correct, weights)
    wanted = [
        expected_calibration_error(np.repeat(confidence, row), np.repeat(correct, row))
        for row in weights
    ]
    assert found == pytest.approx(wanted, abs=1e-12)
    assert np.isnan(resampled_calibration_error([0.5], [1], [[0]])).all()
    shares = random.random((3, 60))  # fractions, as a match of groups needs them
    found = resampled_auroc(correct[:, None], confidence[:, None], shares)[:, 0]
    wanted = [roc_auc_score(correct, confidence, sample_weight=row) for row in shares]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_whole_groups_are_drawn_beside_the_test_set_itself() -> None:
    groups = np.repeat(["p", "q", "r"], [3, 1, 2])
    weights = draw_groups(groups, "k", 50)
    assert weights[0].tolist() == [1] * 6
    assert (weights[:, [0, 3, 4]].sum(axis=1) == 3).all()  # as many groups as there are
    for members in ([0, 1, 2], [4, 5]):
        assert (weights[:, members] == weights[:, members[:1]]).all()
    assert np.array_equal(weights, draw_groups(groups, "k", 50))
    assert not np.array_equal(weights, draw_groups(groups, "other", 50))


def test_holm_is_the_step_down_of_the_hand_case() -> None:
    assert holm([0.03, 0.01, np.nan, 0.04]).tolist()[:2] == pytest.approx([0.06, 0.03])
    assert holm([0.03, 0.01, np.nan, 0.04])[3] == pytest.approx(0.06)  # not below the one before
    assert np.isnan(holm([0.03, 0.01, np.nan, 0.04])[2])
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([]).tolist() == []


def test_an_interval_needs_nine_of_ten_resamples() -> None:
    values = np.arange(100.0)[:, None] * np.ones(2)
    values[:10, 0] = np.nan
    values[:11, 1] = np.nan
    low, high = percentile_interval(values)
    assert [low[0], high[0]] == pytest.approx(np.quantile(np.arange(10.0, 100), [0.025, 0.975]))
    assert np.isnan([low[1], high[1]]).all()


# --- operating points -----------------------------------------------------------------------------


def test_a_threshold_keeps_its_promise_with_nothing_to_spare() -> None:
    scores = np.arange(1, 41, dtype=np.float32) / 100
    positive = np.arange(40) >= 20
    cut, n = Aim("sensitivity", 0.95).threshold(positive, scores)
    assert (cut, n) == (pytest.approx(0.22), 20)  # 19 of 20; the next higher gives 18
    assert Aim("sensitivity", 1.0).threshold(positive, scores)[0] == pytest.approx(0.21)
    cut, n = Aim("specificity", 0.9).threshold(positive, scores)
    assert (scores[~positive] < cut).sum() == 18
    assert n == 20
    assert cut == pytest.approx(0.18, abs=1e-6)
    tied = np.full(10, 0.5, np.float32)
    assert Aim("sensitivity", 0.9).threshold(np.ones(10, bool), tied)[0] == 0.5
    assert Aim("specificity", 0.9).threshold(np.zeros(10, bool), tied)[0] > 0.5
    cut, n = Aim("sensitivity", 0.9).threshold(np.zeros(10, bool), tied)
    assert np.isnan(cut)
    assert n == 0


def test_rates_are_those_of_the_confusion_matrix() -> None:
    random = np.random.default_rng(2)
    positive, scores = random.random(50) < 0.3, random.random((2, 50)).astype(np.float32)
    known = random.random(50) < 0.9
    weights = random.integers(0, 3, (4, 50)).astype(float)
    rates, prevalence = counted_rates(Target("t", positive, known, scores), [0.4, 0.7], weights)
    for r, row in enumerate((weights * known).astype(int)):
        cases = np.repeat(np.arange(50), row)
        tn, fp, fn, tp = sum(
            confusion_matrix(positive[cases], of_seed[cases] >= cut).ravel()
            for of_seed, cut in zip(scores, [0.4, 0.7], strict=True)
        )
        wanted = [tp / (tp + fn), tn / (tn + fp), tp / (tp + fp), tn / (tn + fn)]
        assert [rates[name][r] for name in rates] == pytest.approx(wanted, abs=1e-12)
        assert prevalence[r] == pytest.approx(positive[cases].mean())


def test_nothing_called_positive_has_no_predictive_value() -> None:
    one = Target("t", np.array([True, False]), np.ones(2, bool), np.zeros((1, 2), np.float32))
    rates, _ = counted_rates(one, [0.5], np.ones((1, 2)))
    assert rates["sensitivity"][0] == 0
    assert rates["npv"][0] == 0.5
    assert np.isnan(rates["ppv"][0])


def test_a_hospital_shift_shows_as_a_missed_promise_and_no_shift_does_not() -> None:
    """Elsewhere, positives look less positive by a known amount; the threshold stays."""
    random = np.random.default_rng(3)
    n = 4000
    tests, scores = {}, {}
    for name, level in {"clean": 1.5, "same": 1.5, "elsewhere": 0.5}.items():
        truth = np.eye(2, dtype=np.int8)[random.integers(0, 2, n)]
        evidence = level * truth[:, 1] + random.normal(size=n)
        p = softmax(np.stack([np.zeros(n), evidence], axis=1))[None]
        tests[name] = a_test_set(truth, p, classes=("no", "yes"), key=name)
        scores[name] = truth, p[0]
    cell = cell_of(tests, [scores["clean"]], classes=("no", "yes"), targets=("same", "elsewhere"))
    records = operating_points_of(cell, {"yes": ["yes"]}, Aim("sensitivity", 0.9))
    table = operating_points.table(records).set_index("condition")
    assert table.loc["clean", "sensitivity"] == pytest.approx(0.9, abs=1e-3)
    # The threshold lies at the 10 % quantile of N(1.5, 1): 0.218. Elsewhere P(N(0.5, 1) ≥ 0.218).
    assert table.loc["elsewhere", "sensitivity"] == pytest.approx(0.611, abs=0.03)
    assert table.loc["elsewhere", "shortfall_low"] > 0.2
    assert table.loc["elsewhere", "lost_low"] > 0.2
    assert table.loc["same", "lost_low"] < 0 < table.loc["same", "lost_high"]
    assert abs(table.loc["same", "shortfall"]) < 0.03
    assert table["n_calibration"].tolist() == [scores["clean"][0][:, 1].sum()] * 3


def test_a_target_is_the_sum_of_its_classes_and_needs_them_all_elsewhere() -> None:
    random = np.random.default_rng(4)
    truth, p = drawn_cases(random, 200, seeds=2)
    home = a_test_set(truth, p)
    elsewhere = a_test_set(truth[:, :2], p[:, :, :2], classes=CLASSES[:2])
    cell = cell_of(
        {"clean": home, "far": elsewhere}, [(truth, p[0]), (truth, p[1])], targets=("far",)
    )
    records = operating_points_of(cell, {"b or c": ["b", "c"]}, Aim("specificity", 0.8))
    table = operating_points.table(records)
    assert table.loc[0, "prevalence"] == pytest.approx(1 - truth[:, 0].mean())
    assert table.loc[0, "specificity"] == pytest.approx(0.8, abs=0.02)
    assert pd.isna(table.loc[1, "specificity"])
    assert "lacks one of the target's classes" in table.loc[1, "missing"]


def test_no_positive_to_calibrate_on_gives_a_reason() -> None:
    truth, p = drawn_cases(np.random.default_rng(5), 50)
    without = np.eye(3, dtype=np.int8)[np.zeros(20, int)]
    cell = cell_of({"clean": a_test_set(truth, p)}, [(without, p[0][:20])])
    (row,) = operating_points_of(cell, {"b": ["b"]}, Aim("sensitivity", 0.9))
    assert "no positive case" in row["missing"]
    assert "sensitivity" not in row


def test_net_benefit_of_the_hand_case() -> None:
    """Ten cases, three sick; at 0.2 the probe calls two sick and two well: 2/10 − 2/10 · 1/4."""
    truth = np.eye(2, dtype=np.int8)[[1, 1, 1, 0, 0, 0, 0, 0, 0, 0]]
    p = np.array([0.9, 0.2, 0.1, 0.3, 0.2, 0.1, 0, 0, 0, 0.19], np.float64)
    both = np.stack([1 - p, p], axis=1)[None]
    cell = cell_of(
        {"clean": a_test_set(truth, both, classes=("well", "sick"))},
        [(truth, both[0])],
        classes=("well", "sick"),
    )
    table = net_benefit.table(net_benefit_of(cell, {"sick": ["sick"]}, [0.2, 0.5]))
    assert table["net_benefit"].tolist() == pytest.approx([0.15, 0.1])
    assert table["treat_all"].tolist() == pytest.approx([0.3 - 0.7 / 4, 0.3 - 0.7])
    assert (table["low"] <= table["net_benefit"]).all()


# --- selective prediction -------------------------------------------------------------------------


def test_the_area_is_the_mean_risk_of_the_most_confident() -> None:
    random = np.random.default_rng(6)
    confidence, wrong = random.random(40), random.integers(0, 2, 40)
    curve = RiskCoverage(confidence, wrong, np.ones((1, 40)))
    ordered = wrong[np.argsort(-confidence)]
    risks = np.cumsum(ordered) / np.arange(1, 41)
    assert curve.area()[0] == pytest.approx(risks.mean())
    assert curve.error()[0] == wrong.mean()
    assert curve.risk([0.25, 1.0]) == pytest.approx([risks[9], risks[39]])
    best = np.cumsum(np.sort(wrong)) / np.arange(1, 41)
    assert curve.oracle_area() == pytest.approx(best.mean())


def test_ties_count_as_the_mean_over_all_their_orders() -> None:
    confidence = np.array([0.9, 0.7, 0.7, 0.7, 0.7, 0.2])
    wrong = np.array([0, 1, 0, 1, 0, 1])
    areas = []
    for order in permutations(range(1, 5)):
        ordered = wrong[[0, *order, 5]]
        areas.append((np.cumsum(ordered) / np.arange(1, 7)).mean())
    curve = RiskCoverage(confidence, wrong, np.ones((1, 6)))
    assert curve.area()[0] == pytest.approx(np.mean(areas))
    # A resample is a test set in which the copies of a case are tied.
    weights = np.array([[2.0, 0, 1, 3, 0, 1]])
    repeated = weights[0].astype(int)
    copies = np.repeat(confidence, repeated), np.repeat(wrong, repeated)
    whole = RiskCoverage(*copies, np.ones((1, 7)))
    assert RiskCoverage(confidence, wrong, weights).area() == pytest.approx(whole.area())


@pytest.mark.parametrize(("wrong", "area"), [([0, 0, 0], 0.0), ([1, 1, 1], 1.0), ([1], 1.0)])
def test_all_right_or_all_wrong_or_one_image(wrong: list[int], area: float) -> None:
    curve = RiskCoverage(np.linspace(0.4, 1, len(wrong)), np.array(wrong), np.ones((1, len(wrong))))
    assert curve.area()[0] == curve.oracle_area() == curve.error()[0] == area


def test_multilabel_risk_is_over_the_known_cases_of_each_label() -> None:
    truth = np.array([[1, 0], [0, -1], [1, -1], [0, 1]], dtype=np.int8)
    p = np.array([[[0.9, 0.2], [0.6, 0.9], [0.3, 0.9], [0.2, 0.4]]], dtype=np.float32)
    test = a_test_set(truth, p, classes=("x", "y"))
    cell = cell_of({"clean": test}, [(truth, p[0])], task="multilabel", classes=("x", "y"))
    (row,), risks = selective_prediction_of(cell, [0.5, 1.0])
    assert row["error"] == pytest.approx((2 / 4 + 1 / 2) / 2)
    # x: right 0.9, right 0.8, wrong 0.7, wrong 0.6; y: right 0.8, wrong 0.6.
    assert row["aurc"] == pytest.approx(((0 + 0 + 1 / 3 + 1 / 2) / 4 + (0 + 1 / 2) / 2) / 2)
    assert [risk["risk"] for risk in risks] == pytest.approx([0.0, 0.5])


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose features are its probabilities."""

    def __init__(self) -> None:
        self.classes_ = np.arange(3)
        self.fitted_ = True

    def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, float)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x).argmax(axis=1)


@pytest.mark.parametrize("error_rate", [0.05, 0.1, 0.35])
def test_conformal_sets_are_those_of_mapie(error_rate: float) -> None:
    random = np.random.default_rng(7)
    known, p_known = drawn_cases(random, 57)
    truth, p = drawn_cases(random, 120)
    p_known, p = p_known.astype(np.float64)[0], p.astype(np.float64)
    p_known, p = p_known / p_known.sum(1, keepdims=True), p / p.sum(2, keepdims=True)
    theirs = SplitConformalClassifier(
        Given(), confidence_level=1 - error_rate, conformity_score="lac", prefit=True
    ).conformalize(p_known, known.argmax(axis=1))
    sets = theirs.predict_set(p[0])[1][:, :, 0]
    cell = cell_of({"clean": a_test_set(truth, p)}, [(known, p_known)])
    (row,) = conformal_sets_of(cell, error_rate)
    assert row["coverage"] == pytest.approx(sets[truth == 1].mean())
    assert row["set_size"] == pytest.approx(sets.sum(axis=1).mean())
    assert row["empty"] == pytest.approx((sets.sum(axis=1) == 0).mean())
    assert row["certain"] == pytest.approx((sets.sum(axis=1) == 1).mean())
    by_class = [sets[truth[:, k] == 1, k].mean() for k in range(3)]
    assert row["worst_class_coverage"] == pytest.approx(min(by_class))
    assert row["worst_class"] == CLASSES[int(np.argmin(by_class))]


def test_too_few_calibration_cases_put_every_class_in_every_set() -> None:
    p = np.linspace(0.1, 0.9, 9)
    assert conformal_limit(p, 0.1) == 0.1  # ⌈10 · 0.9⌉ = 9: the worst of nine
    assert conformal_limit(p[1:], 0.1) == -np.inf  # ⌈9 · 0.9⌉ = 9 of eight
    truth, q = drawn_cases(np.random.default_rng(8), 30)
    (row,) = conformal_sets_of(
        cell_of({"clean": a_test_set(truth, q)}, [(truth[:8], q[0][:8])]), 0.1
    )
    assert (row["coverage"], row["set_size"]) == (1, 3)


def test_a_calibration_break_shows_in_the_coverage_and_its_absence_does_not() -> None:
    """The promise holds on cases like the calibration's, not where classes are mixed up."""
    random = np.random.default_rng(9)
    calibration, p_calibration = drawn_cases(random, 2000)
    truth, p = drawn_cases(random, 4000)
    broken = truth.copy()
    swapped = random.random(4000) < 0.3
    broken[swapped] = broken[swapped][:, [1, 2, 0]]
    cell = cell_of(
        {"clean": a_test_set(truth, p), "noise-1": a_test_set(broken, p)},
        [(calibration, p_calibration[0])],
    )
    clean, noisy = conformal_sets_of(cell, 0.1)
    assert clean["coverage_low"] - 0.015 < 0.9 < clean["coverage_high"] + 0.015
    assert noisy["coverage_high"] < 0.85
    assert noisy["lost"] == pytest.approx(clean["coverage"] - noisy["coverage"])
    assert noisy["lost_low"] > 0.05
    assert "lost" not in clean


def test_a_label_is_a_set_of_present_and_absent() -> None:
    truth = np.array([[1], [0], [-1], [0]], dtype=np.int8)
    p = np.array([[0.9], [0.2], [0.5], [0.7]], dtype=np.float32)
    cell = cell_of(
        {"clean": a_test_set(truth, p[None], classes=("x",))},
        [(truth, p)],
        task="multilabel",
        classes=("x",),
    )
    (row,) = conformal_sets_of(cell, 0.5)  # ⌈4 · 0.5⌉ = 2nd smallest score: 0.2 of 0.1, 0.2, 0.7
    assert (row["label"], row["n_calibration"], row["n_cases"]) == ("x", 3, 3)
    assert row["coverage"] == pytest.approx(2 / 3)
    assert row["set_size"] == pytest.approx(2 / 3)  # {present}, {absent}, and none at 0.7
    assert (row["worst_class"], row["worst_class_coverage"]) == ("absent", 0.5)


# --- shift detection -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(200, 12), (40, 90)])
def test_the_distance_is_that_of_scikit_learns_covariance(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(10)
    train = random.normal(size=shape) @ np.diag(np.linspace(0.1, 3, shape[1])) + 4
    seen = random.normal(size=(30, shape[1])) + 4
    ours, theirs = Mahalanobis(train), OAS().fit(train)
    assert ours.shrinkage_ == pytest.approx(theirs.shrinkage_)
    assert ours(seen) == pytest.approx(theirs.mahalanobis(seen), rel=1e-8)


def test_the_neighbours_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(11)
    train, seen = random.normal(size=(60, 8)), random.normal(size=(20, 8))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, seen)]
    wanted = SklearnNeighbours(n_neighbors=7).fit(unit[0]).kneighbors(unit[1])[0][:, -1]
    assert NearestNeighbours(train, 7)(seen) == pytest.approx(wanted, abs=1e-6)
    assert len(NearestNeighbours(train[:3], 7)(seen)) == 20  # fewer images than neighbours


def test_features_without_spread_or_length_have_distances() -> None:
    constant = np.ones((5, 3))
    assert Mahalanobis(constant)(constant + 1).tolist() == [0] * 5
    assert np.isfinite(NearestNeighbours(np.zeros((5, 3)), 2)(constant)).all()


def test_images_are_chosen_by_their_ids_alone() -> None:
    ids = np.array([f"i{k:03d}" for k in range(100)])
    chosen = set(ids[chosen_images(ids, 30)])
    assert len(chosen) == 30
    assert set(ids[::2][chosen_images(ids[::2], 50)]) == set(ids[::2])
    assert chosen_images(ids, 30).tolist() == sorted(chosen_images(ids, 30))
    assert chosen & set(ids[:50]) <= set(ids[:50][chosen_images(ids[:50], 30)])


def test_shift_detection_finds_what_is_external_and_nothing_where_nothing_is() -> None:
    random = np.random.default_rng(12)

    def seen(n: int, shift: float, name: str) -> SeenImages:
        ids = np.array([f"{name}{k:04d}" for k in range(n)])
        return SeenImages(ids, ids, random.normal(size=(n, 20)) + shift * np.eye(20)[0] + 2)

    records = shift_detection_of(
        seen(400, 0, "t"),
        seen(300, 0, "c"),
        seen(300, 0, "x"),
        {"same": seen(300, 0, "y"), "far": seen(300, 6, "z")},
        ShiftDetectionSettings(images=300, neighbours=5, false_alarms=0.05),
        200,
        "d",
    )
    found = pd.DataFrame(records).set_index(["condition", "score"])
    for score in ("mahalanobis", "knn"):
        same, far = found.loc["same", score], found.loc["far", score]
        assert same["auroc_low"] < 0.5 < same["auroc_high"]
        assert same["flagged"] == pytest.approx(0.05, abs=0.05)
        assert far["auroc_low"] > 0.8
        assert far["flagged"] > 0.3
        assert far["distance_ratio"] > 1.2
        assert same["flagged_clean"] == far["flagged_clean"]


@pytest.mark.parametrize("members", [["b"], ["b", "c"]])
def test_thresholds_separate_certain_cases_by_their_log_odds(members: list[str]) -> None:
    truth = np.eye(3, dtype=np.int8)[[1, 1, 0, 0, 0, 0]]
    logits = np.zeros((6, 3))
    logits[:, 1] = [60.0, 50.0, 45.0, 40.0, -1.0, -2.0]
    logits[:, 2] = -5.0
    decided = Decisions("multiclass", logits, np.array([], dtype=int), np.array([]))
    given, scores = decided.probabilities(), decided.log_odds()
    assert (given[:4, 1] == 1).all()
    test = replace(a_test_set(truth, given[None]), scores=scores[None])
    cell = cell_of({"clean": test}, [(truth, given)])
    cell = replace(cell, calibration=[replace(cell.calibration[0], scores=scores)])
    (row,) = operating_points_of(cell, {"t": members}, Aim("sensitivity", 0.9))
    assert (row["sensitivity"], row["specificity"]) == (1.0, 1.0)
    assert row["threshold"] == pytest.approx(1.0)  # displayed as a probability
    # Of the same probabilities alone, two negatives reach the threshold.
    alone = replace(cell, calibration=[replace(cell.calibration[0], scores=None)])
    alone = replace(alone, tests={"clean": replace(test, scores=None)})
    (row,) = operating_points_of(alone, {"t": members}, Aim("sensitivity", 0.9))
    assert row["specificity"] == 0.5


def test_the_log_odds_of_several_classes_are_those_of_their_sum() -> None:
    logits = np.random.default_rng(0).normal(size=(40, 3))
    decided = Decisions("multiclass", logits, np.array([], dtype=int), np.array([]))
    truth = np.eye(3, dtype=np.int8)[np.arange(40) % 3]
    cases = replace(some_cases(truth, decided.probabilities()), scores=decided.log_odds())
    found = ranked_target("t", ["a", "c"], cases)
    p = decided.probabilities()[:, [0, 2]].sum(axis=1)
    assert found is not None
    assert found.scores[0] == pytest.approx(np.log(p / (1 - p)), abs=1e-12)
    # Labels do not exclude each other: their probabilities are added up.
    labels = ranked_target("t", ["a", "c"], replace(cases, task="multilabel"))
    assert labels is not None
    assert labels.scores[0] == pytest.approx(p)
