"""The score: hand-worked cases, an independent slow implementation, the frozen reference."""

import dataclasses
import itertools
import json
import math
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from crsbench.core.errors import UserError
from crsbench.core.files import write_json
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.score import (
    AXES,
    MEASURES,
    Scoring,
    Weights,
    add_tiers,
    axes_table,
    crs_components,
    crs_table,
    freeze_reference,
    load_reference,
    load_scoring,
    runs_to_rows,
    seed_bootstrap,
)
from crsbench.score.axes import finish_axes
from crsbench.score.bootstrap import tiers
from worlds.workflow import HOME

SCORING_FILE = HOME / "config" / "scoring.yaml"
SCORING = load_scoring(SCORING_FILE)
METRICS = ("macro_auroc", "ece", "classwise_ece", "adaptive_ece", "brier", "log_loss")


# --- worlds ---------------------------------------------------------------------------------------


def axes_of(panel: dict[str, dict[str, list[tuple[float, ...]]]]) -> pd.DataFrame:
    """Table of axes from {encoder: {data set: [the four normalised axes of each seed]}}.

    The measures are put where the default anchors make the wanted axes of them, up to rounding.
    """
    records = []
    for encoder, datasets in panel.items():
        for dataset, seeds in datasets.items():
            for seed, (discrimination, calibration, supervision, robustness) in enumerate(seeds):
                drop = 0.3 * (1 - robustness)
                records.append(
                    {
                        "encoder": encoder,
                        "dataset": dataset,
                        "seed": seed,
                        "macro_auroc": 0.5 + 0.5 * discrimination,
                        "ece": 0.3 * (1 - calibration),
                        "retention": 0.5 + 0.5 * supervision,
                        "mean_drop": drop,
                        "worst_drop": drop,
                        "shift_drop": math.nan,
                        "drop": drop,
                        "missing": None,
                    }
                )
    return finish_axes(pd.DataFrame(records), SCORING)


def one_dataset(**axes: tuple[float, ...]) -> pd.DataFrame:
    return axes_of({encoder: {"isic2019": [values]} for encoder, values in axes.items()})


def random_panel(
    seed: int,
    n_encoders: int = 6,
    n_seeds: int = 3,
    datasets: tuple[str, ...] = ("a", "b"),
    prefix: str = "enc",
) -> pd.DataFrame:
    """Encoders of different quality, of which some lack a data set.

    Single seeds lie on a coarse lattice, so that encoders tie; several would only nearly do so.
    """
    rng = np.random.default_rng(seed)

    def axes(level: float) -> tuple[float, ...]:
        if n_seeds == 1:
            return tuple(rng.integers(1, 8, 4) / 8)
        return tuple((level + rng.normal(0, 0.1, 4)).tolist())

    panel: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for e, d in itertools.product(range(n_encoders), range(len(datasets))):
        if e < 2 or (e + d) % 4:
            cell = [axes(level) for level in [rng.uniform(0.2, 0.9)] * n_seeds]
            panel.setdefault(f"{prefix}{e}", {})[datasets[d]] = cell
    return axes_of(panel)


def noisy_panel(
    truth: np.ndarray, n_seeds: int, seed: int, sd: float = 0.01, shared: float = 0.5
) -> pd.DataFrame:
    """Encoders with true axes (E, 4) on three data sets, seeds adding noise they partly share."""
    rng = np.random.default_rng(seed)
    panel: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for dataset in ("aptos2019", "chexpert", "isic2019"):
        common = rng.normal(size=(1, n_seeds, 4)) * math.sqrt(shared)
        own = rng.normal(size=(len(truth), n_seeds, 4)) * math.sqrt(1 - shared)
        for e, seeds in enumerate(truth[:, None] + sd * (common + own)):
            panel.setdefault(f"enc{e:02d}", {})[dataset] = [tuple(axes) for axes in seeds.tolist()]
    return axes_of(panel)


def runs_of(aurocs: dict[tuple[str, str, int, str, int], float]) -> pd.DataFrame:
    """Table of runs from {(encoder, data set, seed, condition, percent): macro-AUROC}."""
    keys = ["encoder", "dataset", "seed", "condition", "percent"]
    records = [
        dict(zip(keys, key, strict=True))
        | dict.fromkeys(METRICS, 0.1 + 0.01 * key[2])
        | {"macro_auroc": auroc}
        for key, auroc in aurocs.items()
    ]
    return pd.DataFrame(records)


def score(axes: pd.DataFrame, **options: object) -> pd.DataFrame:
    return crs_table(axes, SCORING, **options).set_index(["dataset", "encoder"])


# --- the scoring file -----------------------------------------------------------------------------


class TestScoringFile:
    def test_has_the_weights_and_anchors_of_the_protocol(self):
        assert SCORING.weights == Weights(dominance=0.60, proximity=0.25, worst_axis=0.15)
        assert {
            name: (axis.measure, axis.zero, axis.one) for name, axis in SCORING.axes.items()
        } == {
            "discrimination": ("macro_auroc", 0.5, 1.0),
            "calibration": ("ece", 0.30, 0.0),
            "supervision": ("retention", 0.5, 1.0),
            "robustness": ("drop", 0.30, 0.0),
        }

    def test_anchors_map_to_zero_and_one_and_beyond_them_is_clipped(self):
        calibration = SCORING.axes["calibration"]
        assert calibration.normalise([0.30, 0.15, 0.0, 0.5]).tolist() == [0, 0.5, 1, 0]
        assert not np.signbit(calibration.normalise([0.30])).any()
        assert SCORING.axes["supervision"].normalise([1.01, 0.4]).tolist() == [1, 0]
        assert np.isnan(calibration.normalise([math.nan])).all()

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (["weigths"], {}, "unknown key 'weigths' .*did you mean 'weights'"),
            (["axes", "discriminaton"], {}, "unknown key .*did you mean 'discrimination'"),
            (["weights", "worst"], 0.1, "'worst' in weights .*did you mean 'worst_axis'"),
            (["weights", "dominance"], 0.65, "add up to 1.05; they must add up to 1"),
            (["weights", "dominance"], -0.1, "weights.dominance is -0.1: .*minimum of 0"),
            (["weights", "dominance"], "0.6", 'weights.dominance is "0.6"; allowed is a number'),
            (["weights", "dominance"], True, "weights.dominance is true; allowed is a number"),
            (["axes", "calibration", "zero"], 0.0, "equal anchors zero and one, both 0"),
            (
                ["axes", "calibration", "zero"],
                math.nan,
                "calibration.zero is nan; allowed is a finite number",
            ),
            (["axes", "calibration", "one"], math.inf, "calibration.one is inf; allowed is a fin"),
            (["axes", "calibration", "measure"], "ecee", "is \"ecee\" .*did you mean 'ece'"),
            (["axes", "calibration"], None, "axes.calibration is null; allowed is "),
            (["protocol_version"], 1.0, "protocol_version is 1.0; allowed is text"),
        ],
    )
    def test_is_closed_and_names_what_is_wrong(self, tmp_path, path, value, message):
        content = yaml.safe_load(SCORING_FILE.read_text())
        *parents, last = path
        target = content
        for key in parents:
            target = target[key]
        target[last] = value
        changed = tmp_path / "scoring.yaml"
        changed.write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match=f"scoring.yaml.*{message}"):
            load_scoring(changed)

    def test_the_schema_allows_the_measures_and_axes_of_the_code(self):
        schema = yaml.safe_load((HOME / "workflow/schemas/scoring.schema.yaml").read_text("utf-8"))
        assert schema["$defs"]["axis"]["properties"]["measure"]["enum"] == list(MEASURES)
        axes = schema["properties"]["axes"]
        assert set(axes["required"]) == set(axes["properties"]) == set(AXES)

    def test_names_a_missing_key_and_an_unreadable_file(self, tmp_path):
        incomplete = tmp_path / "scoring.yaml"
        incomplete.write_text('protocol_version: "1"\n')
        with pytest.raises(UserError, match="lacks the key 'axes'"):
            load_scoring(incomplete)
        with pytest.raises(UserError, match="cannot be read"):
            load_scoring(tmp_path / "absent.yaml")
        incomplete.write_text("a: [")
        with pytest.raises(UserError, match="not valid YAML"):
            load_scoring(incomplete)


# --- rows and axes --------------------------------------------------------------------------------

# One encoder and seed: the fractions 1 and 10 %, two degraded conditions, one other institution.
ONE_SEED = {
    ("clean", 1): 0.60,
    ("clean", 10): 0.72,
    ("clean", 100): 0.80,
    ("jpeg-1", 10): 0.50,
    ("jpeg-1", 100): 0.78,
    ("fov_crop-1", 100): 0.70,
    ("mimic", 100): 0.65,
}


def two_encoders() -> dict[tuple[str, str, int, str, int], float]:
    return {
        (encoder, "chexpert", seed, condition, percent): auroc - 0.02 * (seed == 1)
        for encoder, seed in itertools.product(("clip", "mae"), (0, 1))
        for (condition, percent), auroc in ONE_SEED.items()
    }


class TestRows:
    def test_are_means_and_deviations_over_seeds(self):
        rows = runs_to_rows(runs_of(two_encoders()))
        assert len(rows) == 2 * len(ONE_SEED)
        row = rows[(rows.encoder == "mae") & (rows.condition == "jpeg-1") & (rows.percent == 100)]
        assert row["n_seeds"].item() == 2
        assert row["macro_auroc_mean"].item() == pytest.approx(0.77)
        assert row["macro_auroc_sd"].item() == pytest.approx(0.02 / math.sqrt(2))
        assert row["ece_mean"].item() == pytest.approx(0.105)

    def test_one_seed_has_no_deviation(self):
        runs = runs_of({key: auroc for key, auroc in two_encoders().items() if key[2] == 0})
        assert runs_to_rows(runs)["macro_auroc_sd"].isna().all()

    def test_a_metric_missing_in_one_seed_is_missing_in_the_row(self):
        aurocs = two_encoders()
        aurocs["mae", "chexpert", 0, "clean", 1] = math.nan
        rows = runs_to_rows(runs_of(aurocs)).set_index(["encoder", "condition", "percent"])
        gone = rows.loc[("mae", "clean", 1)]
        assert math.isnan(gone["macro_auroc_mean"])
        assert math.isnan(gone["macro_auroc_sd"])
        assert gone["ece_mean"] == pytest.approx(0.105)
        assert rows["macro_auroc_mean"].isna().sum() == 1

    def test_have_the_core_where_the_runs_have_it(self):
        runs = runs_of(two_encoders())
        assert "macro_auroc_core_mean" not in runs_to_rows(runs)
        runs["macro_auroc_core"] = runs["macro_auroc"] + 0.1
        runs.loc[runs["encoder"] == "mae", "macro_auroc_core"] = None
        rows = runs_to_rows(runs).set_index("encoder")
        assert rows.loc["mae", "macro_auroc_core_mean"].isna().all()
        clip = rows.loc["clip"]
        wanted = clip["macro_auroc_mean"].to_numpy() + 0.1
        assert clip["macro_auroc_core_mean"].to_numpy() == pytest.approx(wanted)
        assert clip["macro_auroc_core_sd"].to_numpy() == pytest.approx(clip["macro_auroc_sd"])

    def test_refuse_a_run_twice_and_an_absent_column(self):
        runs = runs_of(two_encoders())
        with pytest.raises(ValueError, match="a run twice: encoder clip, dataset chexpert, seed 0"):
            runs_to_rows(pd.concat([runs, runs.head(1)]))
        with pytest.raises(ValueError, match="lacks the columns ece"):
            runs_to_rows(runs.drop(columns="ece"))


class TestAxes:
    def table(self, aurocs, targets=("mimic",)):
        axes = axes_table(runs_of(aurocs), SCORING, {"chexpert": list(targets)})
        return axes.set_index(["encoder", "seed"])

    def test_by_hand(self):
        row = self.table(two_encoders()).loc[("clip", 0)]
        assert row["macro_auroc"] == 0.80
        assert row["ece"] == 0.1
        assert row["retention"] == pytest.approx((0.60 / 0.80 + 0.72 / 0.80) / 2)
        assert row["mean_drop"] == pytest.approx((0.02 + 0.10) / 2)
        assert row["worst_drop"] == pytest.approx(0.10)
        assert row["shift_drop"] == pytest.approx(0.15)
        assert row["drop"] == pytest.approx((0.06 + 0.10 + 0.15) / 3)
        assert row["axis_discrimination"] == pytest.approx(0.6)
        assert row["axis_calibration"] == pytest.approx(2 / 3)
        assert row["axis_supervision"] == pytest.approx(0.65)
        assert row["axis_robustness"] == pytest.approx(1 - 0.31 / 3 / 0.3)
        assert pd.isna(row["missing"])

    def test_the_mean_over_seeds_is_of_measures_and_its_axes_follow(self):
        table = self.table(two_encoders())
        mean = table.loc[("clip", SEED_MEAN)]
        for measure in MEASURES:
            seeds = table.loc[("clip", 0)][measure], table.loc[("clip", 1)][measure]
            assert mean[measure] == sum(seeds) / 2
        for name, axis in SCORING.axes.items():
            assert mean[f"axis_{name}"] == axis.normalise(mean[axis.measure])

    def test_a_data_set_without_another_institution_has_two_parts(self):
        aurocs = {key: auroc for key, auroc in two_encoders().items() if key[3] != "mimic"}
        row = self.table(aurocs, targets=()).loc[("clip", 0)]
        assert math.isnan(row["shift_drop"])
        assert row["drop"] == pytest.approx((0.06 + 0.10) / 2)
        assert pd.isna(row["missing"])

    def test_several_institutions_are_one_part(self):
        aurocs = two_encoders()
        aurocs |= {(*key[:3], "padchest", 100): 0.55 for key in aurocs if key[3] == "mimic"}
        row = self.table(aurocs, targets=("padchest", "mimic")).loc[("clip", 0)]
        assert row["shift_drop"] == pytest.approx((0.15 + 0.25) / 2)
        assert row["mean_drop"] == pytest.approx(0.06)

    def test_an_institutions_drop_is_over_the_labels_of_both_sides(self):
        runs = runs_of(two_encoders())
        elsewhere = runs["condition"] == "mimic"
        runs["source_macro_auroc"] = (runs["macro_auroc"] * 0 + 0.75).where(elsewhere)
        runs["target_macro_auroc"] = (runs["macro_auroc"] * 0 + 0.70).where(elsewhere)
        axes = axes_table(runs, SCORING, {"chexpert": ["mimic"]}).set_index(["encoder", "seed"])
        row = axes.loc[("clip", 0)]
        assert row["shift_drop"] == pytest.approx(0.05)
        assert row["drop"] == pytest.approx((0.06 + 0.10 + 0.05) / 3)
        assert row["mean_drop"] == pytest.approx(0.06)

    def test_the_same_labels_on_both_sides_give_the_same_bits(self):
        runs = runs_of(two_encoders())
        plain = axes_table(runs, SCORING, {"chexpert": ["mimic"]})
        key = ["encoder", "dataset", "seed", "percent"]
        clean = runs[runs["condition"] == "clean"].set_index(key)["macro_auroc"]
        elsewhere = runs["condition"] == "mimic"
        source = clean.reindex(pd.MultiIndex.from_frame(runs[key])).to_numpy()
        runs["source_macro_auroc"] = pd.Series(source, runs.index).where(elsewhere)
        runs["target_macro_auroc"] = runs["macro_auroc"].where(elsewhere)
        again = axes_table(runs, SCORING, {"chexpert": ["mimic"]})
        pd.testing.assert_frame_equal(plain, again, check_exact=True)

    def test_no_label_on_both_sides_is_no_drop_and_says_so(self):
        runs = runs_of(two_encoders()).assign(source_macro_auroc=None, target_macro_auroc=None)
        row = axes_table(runs, SCORING, {"chexpert": ["mimic"]}).iloc[0]
        assert math.isnan(row["shift_drop"])
        assert math.isnan(row["drop"])
        assert "no class defined on both sides: mimic at 100 %" in row["missing"]

    def test_one_side_without_the_other_is_refused(self):
        runs = runs_of(two_encoders()).assign(source_macro_auroc=0.5)
        with pytest.raises(ValueError, match="lacks the columns target_macro_auroc"):
            axes_table(runs, SCORING, {"chexpert": ["mimic"]})

    @pytest.mark.parametrize(
        ("gone", "absent", "why"),
        [
            (("clean", 10), {"retention"}, "no run: clean at 10 %"),
            (("fov_crop-1", 100), {"mean_drop", "worst_drop", "drop"}, "no run: fov_crop-1"),
            (("mimic", 100), {"shift_drop", "drop"}, "no run: mimic at 100 %"),
            (("clean", 100), set(MEASURES), "no run: clean at 100 %"),
        ],
    )
    @pytest.mark.parametrize("undefined", [False, True])
    def test_what_is_missing_stays_missing_with_its_reason(self, gone, absent, why, undefined):
        aurocs = two_encoders()
        key = ("mae", "chexpert", 1, *gone)
        if undefined:
            aurocs[key] = math.nan
            why = why.replace("no run", "macro-AUROC undefined")
            absent = absent - {"ece"}
        else:
            del aurocs[key]
        table = self.table(aurocs)
        for seed in (1, SEED_MEAN):
            row = table.loc[("mae", seed)]
            assert {measure for measure in MEASURES if math.isnan(row[measure])} == absent
            assert why in row["missing"]
        assert table.loc[("mae", SEED_MEAN)]["missing"].startswith("seed 1: ")
        untouched = table.drop(index=[("mae", 1), ("mae", SEED_MEAN)])
        assert not untouched[list(MEASURES)].isna().any(axis=None)

    def test_an_encoder_without_a_seed_of_the_others_has_no_mean(self):
        aurocs = {key: auroc for key, auroc in two_encoders().items() if key[::2] != ("mae", 1, 10)}
        aurocs = {key: auroc for key, auroc in aurocs.items() if (key[0], key[2]) != ("mae", 1)}
        table = self.table(aurocs)
        assert table.loc[("mae", SEED_MEAN)][list(MEASURES)].isna().all()
        assert "seed 1: no run: clean at 1 % and 5 more" in table.loc[("mae", SEED_MEAN)]["missing"]

    def test_without_fractions_or_degradations_the_axes_are_missing(self):
        aurocs = {key: auroc for key, auroc in two_encoders().items() if key[3:] == ("clean", 100)}
        row = self.table(aurocs, targets=()).loc[("mae", 0)]
        assert math.isnan(row["axis_supervision"])
        assert math.isnan(row["axis_robustness"])
        assert "no label fraction below 100 %" in row["missing"]
        assert "no degraded condition and no shift target" in row["missing"]

    def test_have_the_same_bits_in_any_order_and_beside_any_encoder(self):
        aurocs = two_encoders()
        runs = runs_of(aurocs)
        first = axes_table(runs, SCORING, {"chexpert": ["mimic"]})
        shuffled = runs.sample(frac=1, random_state=0)
        again = axes_table(shuffled, SCORING, {"chexpert": ["mimic"]})
        pd.testing.assert_frame_equal(first, again, check_exact=True)
        more = runs_of(aurocs | {("a_new", *key[1:]): v / 3 for key, v in aurocs.items()})
        beside = axes_table(more, SCORING, {"chexpert": ["mimic"]})
        beside = beside[beside["encoder"] != "a_new"].reset_index(drop=True)
        pd.testing.assert_frame_equal(first, beside, check_exact=True)

    def test_refuse_reserved_names_and_seeds(self):
        runs = runs_of(two_encoders())
        with pytest.raises(ValueError, match="'aggregate' is reserved"):
            axes_table(runs.assign(dataset="aggregate"), SCORING, {})
        with pytest.raises(ValueError, match="must not be negative, got -1"):
            axes_table(runs.replace({"seed": {0: -1}}), SCORING, {})


# --- the score by hand ----------------------------------------------------------------------------


def slow_crs(axes: pd.DataFrame, floors: tuple[str, ...] = ()) -> dict[tuple[str, str], float]:
    """The protocol's section 6 in plain Python, straight from the measures of the seeds."""
    anchors = {"macro_auroc": (0.5, 1), "ece": (0.3, 0), "retention": (0.5, 1), "drop": (0.3, 0)}
    seeds = axes[axes["seed"] >= 0]
    profile: dict[tuple[str, str], list[float]] = {}
    for (dataset, encoder), own in seeds.groupby(["dataset", "encoder"]):
        profile[dataset, encoder] = [
            min(1.0, max(0.0, (math.fsum(own[measure]) / len(own) - zero) / (one - zero)))
            for measure, (zero, one) in anchors.items()
        ]
    scores: dict[tuple[str, str], float] = {}
    for (dataset, encoder), a in profile.items():
        peers = [
            b for (d, e), b in profile.items() if d == dataset and e != encoder and e not in floors
        ]
        dominated = 0
        for b in peers:
            no_worse = sum(x >= y for x, y in zip(a, b, strict=True)) == 4
            dominated += no_worse and a != b
        distance = math.dist(a, [1, 1, 1, 1])
        scores[dataset, encoder] = (
            0.60 * dominated / len(peers) + 0.25 * (1 - distance / 2) + 0.15 * min(a)
        )
    for encoder in {e for _, e in profile}:
        own = [value for (_, e), value in scores.items() if e == encoder]
        scores[AGGREGATE, encoder] = math.fsum(own) / len(own)
    return scores


class TestCrs:
    def test_of_three_encoders_on_paper(self):
        # best dominates both others; steady and sharp each win two axes of each other.
        table = score(
            one_dataset(
                best=(1.0, 1.0, 1.0, 1.0), steady=(0.5, 0.5, 1.0, 1.0), sharp=(1.0, 1.0, 0.5, 0.5)
            )
        ).loc["isic2019"]
        assert table["dominance"].to_dict() == {"best": 1.0, "sharp": 0.0, "steady": 0.0}
        # ‖1 − a‖ = √(0.25 + 0.25), halved.
        proximity = 1 - math.sqrt(0.5) / 2
        assert table.loc["steady", "proximity"] == pytest.approx(proximity, abs=1e-12)
        assert table.loc["steady", "worst_axis"] == pytest.approx(0.5, abs=1e-12)
        expected = {"best": 1.0, "steady": 0.25 * proximity + 0.075}
        expected["sharp"] = expected["steady"]
        assert table["crs"].to_dict() == pytest.approx(expected, abs=1e-12)
        assert table["crs_rank"].to_dict() == {"best": 1, "sharp": 2, "steady": 2}

    def test_of_five_encoders_on_paper(self):
        # A beats C, D, E; B beats D, E; C beats E; D beats E; B and C each win an axis.
        table = score(
            one_dataset(
                A=(0.8, 0.8, 0.8, 0.8),
                B=(0.9, 0.6, 0.6, 0.6),
                C=(0.8, 0.8, 0.7, 0.6),
                D=(0.6, 0.6, 0.6, 0.4),
                E=(0.2, 0.6, 0.6, 0.4),
            )
        ).loc["isic2019"]
        assert table["dominance"].tolist() == [3 / 4, 2 / 4, 2 / 4, 1 / 4, 0]
        assert table["worst_axis"].tolist() == pytest.approx([0.8, 0.6, 0.6, 0.4, 0.2], abs=1e-12)
        squared = [0.16, 0.49, 0.33, 0.84, 1.32]
        assert table["proximity"].tolist() == pytest.approx(
            [1 - math.sqrt(s) / 2 for s in squared], abs=1e-12
        )
        assert table["crs"].tolist() == pytest.approx(
            [
                0.60 * d + 0.25 * (1 - math.sqrt(s) / 2) + 0.15 * w
                for d, s, w in zip(
                    [0.75, 0.5, 0.5, 0.25, 0], squared, [0.8, 0.6, 0.6, 0.4, 0.2], strict=True
                )
            ],
            abs=1e-12,
        )
        assert table["crs_rank"].tolist() == [1, 3, 2, 4, 5]
        assert table["auroc_rank"].tolist() == [2, 1, 2, 4, 5]

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("n_seeds", [1, 5])
    def test_agrees_with_the_slow_implementation(self, seed, n_seeds):
        axes = random_panel(seed, n_encoders=9, n_seeds=n_seeds)
        table = score(axes, floors=["enc3"])
        slow = slow_crs(axes, floors=("enc3",))
        assert set(table.index) == set(slow)
        assert table["crs"].to_dict() == pytest.approx(slow, abs=1e-12, rel=0)
        weights = SCORING.weights
        assert table["crs"].tolist() == pytest.approx(
            (
                weights.dominance * table["dominance"]
                + weights.proximity * table["proximity"]
                + weights.worst_axis * table["worst_axis"]
            ).tolist(),
            abs=1e-12,
        )

    def test_a_pareto_tie_needs_one_better_axis(self):
        table = score(one_dataset(a=(0.5, 0.5, 0.5, 0.5), b=(0.5, 0.5, 0.5, 0.75)))
        assert table.loc["isic2019", "dominance"].to_dict() == {"a": 0.0, "b": 1.0}

    def test_identical_encoders_do_not_dominate_each_other_and_share_their_rank(self):
        table = score(
            one_dataset(a=(0.5, 0.6, 0.7, 0.8), b=(0.5, 0.6, 0.7, 0.8), c=(0.4, 0.6, 0.7, 0.8))
        ).loc["isic2019"]
        assert table["dominance"].to_dict() == {"a": 0.5, "b": 0.5, "c": 0.0}
        assert table.loc["a", "crs"] == table.loc["b", "crs"]
        assert table["crs_rank"].to_dict() == {"a": 1, "b": 1, "c": 3}

    def test_an_encoder_is_never_its_own_peer(self):
        # As in a replicate against a frozen panel: the encoder beats its own published values.
        parts = crs_components(
            axes=np.full((1, 4), 0.6),
            peers=np.array([[0.5] * 4, [0.9] * 4]),
            is_self=np.array([[True, False]]),
            weights=SCORING.weights,
        )
        assert parts.dominance.tolist() == [0.0]

    def test_clipping_makes_a_tie(self):
        # Both keep more than everything; the axis is 1 for both, so neither is better on it.
        axes = one_dataset(a=(0.5, 0.5, 1.2, 0.5), b=(0.5, 0.5, 1.1, 0.5))
        assert score(axes).loc["isic2019", "dominance"].tolist() == [0.0, 0.0]

    def test_one_encoder_alone_has_no_dominance_and_no_score(self):
        row = score(one_dataset(alone=(0.5, 0.5, 0.5, 0.5))).loc[("isic2019", "alone")]
        assert math.isnan(row["dominance"])
        assert math.isnan(row["crs"])
        assert pd.isna(row["crs_rank"])
        assert row["missing"] == "no peer in the reference panel"
        assert row["proximity"] == pytest.approx(0.5)
        assert row["worst_axis"] == pytest.approx(0.5)
        assert row["auroc_rank"] == 1

    def test_an_encoder_without_a_data_set_is_averaged_over_those_it_has(self):
        axes = axes_of(
            {
                "retfound": {
                    "aptos2019": [(0.9, 0.9, 0.9, 0.9)],
                    "isic2019": [(0.2, 0.2, 0.2, 0.2)],
                },
                "clip": {"aptos2019": [(0.5, 0.5, 0.5, 0.5)], "isic2019": [(0.5, 0.5, 0.5, 0.5)]},
                "biovil": {"isic2019": [(0.4, 0.4, 0.4, 0.4)]},
            }
        )
        table = score(axes)
        assert ("aptos2019", "biovil") not in table.index
        assert table.loc["aptos2019", "dominance"].to_dict() == {"clip": 0.0, "retfound": 1.0}
        assert table.loc["isic2019", "dominance"].to_dict() == {
            "biovil": 0.5,
            "clip": 1.0,
            "retfound": 0.0,
        }
        aggregate = table.loc[AGGREGATE]
        assert aggregate["n_datasets"].to_dict() == {"biovil": 1, "clip": 2, "retfound": 2}
        assert aggregate.loc["biovil", "crs"] == table.loc[("isic2019", "biovil"), "crs"]
        assert aggregate.loc["clip", "dominance"] == 0.5
        assert aggregate.loc["retfound", "macro_auroc"] == pytest.approx((0.95 + 0.6) / 2)

    def test_a_cell_with_a_missing_axis_has_no_score_is_no_peer_and_leaves_no_aggregate(self):
        axes = axes_of(
            {
                name: {"a": [(level,) * 4], "b": [(level,) * 4]}
                for name, level in (("good", 0.8), ("poor", 0.3), ("gap", math.nan))
            }
        )
        axes["missing"] = axes["missing"].mask(axes["encoder"] == "gap", "no run: mimic at 100 %")
        table = score(axes)
        gap = table.loc[("a", "gap")]
        assert gap[["dominance", "proximity", "worst_axis", "crs"]].isna().all()
        assert gap["missing"] == "no run: mimic at 100 %"
        assert table.loc[(AGGREGATE, "gap"), "missing"] == "no score on a, b"
        assert pd.isna(table.loc[(AGGREGATE, "gap"), "crs_rank"])
        assert table.loc[("a", "good"), "dominance"] == 1.0

    def test_a_floor_encoder_is_scored_separately(self):
        axes = one_dataset(
            good=(0.8, 0.8, 0.8, 0.8), poor=(0.3, 0.3, 0.3, 0.3), floor=(0.2, 0.2, 1.0, 1.0)
        )
        table = score(axes, floors=["floor"])
        assert table["floor"].to_dict() == {key: key[1] == "floor" for key in table.index}
        assert table.loc["isic2019", "dominance"].to_dict() == {
            "floor": 0.0,
            "good": 1.0,
            "poor": 0.0,
        }
        assert table.loc["isic2019", "crs_rank"].dropna().to_dict() == {"good": 1, "poor": 2}
        assert pd.isna(table.loc[(AGGREGATE, "floor"), "auroc_rank"])
        without = score(axes[axes["encoder"] != "floor"])
        assert table.loc[without.index, "crs"].tolist() == without["crs"].tolist()

    def test_refuses_a_cell_twice(self):
        axes = random_panel(0)
        with pytest.raises(ValueError, match="a row twice: encoder enc0, dataset a, seed -1"):
            crs_table(pd.concat([axes, axes.head(1)]), SCORING)

    def test_another_measure_may_make_an_axis(self):
        robustness = dataclasses.replace(SCORING.axes["robustness"], measure="worst_drop")
        scoring = Scoring(
            SCORING.protocol_version,
            MappingProxyType({**SCORING.axes, "robustness": robustness}),
            SCORING.weights,
        )
        axes = axes_table(runs_of(two_encoders()), scoring, {"chexpert": ["mimic"]})
        assert axes["axis_robustness"].tolist() == (
            robustness.normalise(axes["worst_drop"]).tolist()
        )


# --- the frozen reference -------------------------------------------------------------------------


def changed(scoring: Scoring, **values: object) -> Scoring:
    return dataclasses.replace(scoring, **values)


class TestReference:
    @pytest.fixture
    def axes(self) -> pd.DataFrame:
        return random_panel(0)

    @pytest.fixture
    def reference(self, axes, tmp_path):
        return freeze_reference(tmp_path / "published.json", axes, SCORING, {"runs": "00ff"})

    def test_file_is_strict_json_with_what_made_it(self, reference, axes, tmp_path):
        content = json.loads((tmp_path / "published.json").read_text(), parse_constant=pytest.fail)
        assert content["scoring"] == SCORING.to_json()
        assert content["digests"] == {"runs": "00ff"}
        one = axes[(axes.encoder == "enc1") & (axes.dataset == "a") & (axes.seed == 2)].iloc[0]
        assert content["panel"]["enc1"]["a"]["2"]["ece"] == one["ece"]
        assert content["panel"]["enc1"]["a"]["2"]["shift_drop"] is None
        table = score(axes)
        assert content["scores"]["enc1"][AGGREGATE] == table.loc[(AGGREGATE, "enc1"), "crs"]

    def test_reading_gives_the_same_bits_back(self, reference, axes, tmp_path):
        again = load_reference(tmp_path / "published.json")
        assert again.name == "published"
        assert again.scoring == SCORING
        pd.testing.assert_frame_equal(again.axes, axes, check_exact=True)

    def test_its_panel_scores_as_it_did_on_its_own(self, reference, axes):
        own, frozen = crs_table(axes, SCORING), crs_table(axes, SCORING, reference)
        pd.testing.assert_frame_equal(
            own.drop(columns="reference"), frozen.drop(columns="reference"), check_exact=True
        )
        assert set(own["reference"]) == {"own panel"}
        assert set(frozen["reference"]) == {"published"}

    def test_the_panel_need_not_be_run_again(self, reference, axes):
        newcomer = random_panel(9, n_encoders=1, prefix="new")
        alone = crs_table(newcomer, SCORING, reference)
        beside = crs_table(pd.concat([axes, newcomer]), SCORING, reference)
        pd.testing.assert_frame_equal(alone, beside, check_exact=True)
        assert set(alone["encoder"]) == {*axes["encoder"], "new0"}

    def test_a_newcomer_is_scored_against_the_whole_panel_and_no_newcomer(self, tmp_path):
        panel = one_dataset(a=(0.2, 0.2, 0.2, 0.2), b=(0.4, 0.4, 0.4, 0.4))
        reference = freeze_reference(tmp_path / "two.json", panel, SCORING, {})
        newcomers = one_dataset(c=(0.3, 0.3, 0.3, 0.3), d=(0.1, 0.1, 0.1, 0.1))
        table = score(newcomers, reference=reference).loc["isic2019"]
        assert table["dominance"].to_dict() == {"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.0}
        assert table["crs_rank"].to_dict() == {"b": 1, "c": 2, "a": 3, "d": 4}

    @settings(max_examples=30, deadline=None)
    @given(
        panel_seed=st.integers(0, 10_000),
        newcomer_seed=st.integers(0, 10_000),
        n_panel=st.integers(2, 12),
        n_newcomers=st.integers(1, 4),
    )
    @pytest.mark.slow
    def test_newcomers_leave_published_scores_their_exact_bits(
        self, tmp_path_factory, panel_seed, newcomer_seed, n_panel, n_newcomers
    ):
        path = tmp_path_factory.mktemp("reference") / "frozen.json"
        panel = random_panel(panel_seed, n_panel)
        reference = freeze_reference(path, panel, SCORING, {})
        newcomers = random_panel(newcomer_seed, n_newcomers, prefix="new")
        published = score(panel)
        after = score(pd.concat([newcomers, panel]), reference=reference).loc[published.index]
        for column in ("dominance", "proximity", "worst_axis", "crs", "macro_auroc"):
            assert after[column].to_numpy().tobytes() == published[column].to_numpy().tobytes()

    def test_renormalising_by_the_cohort_would_move_them(self):
        def cohort_crs(axes: pd.DataFrame) -> pd.Series:
            ranges = axes[axes["seed"] == SEED_MEAN].copy()
            for name in AXES:
                column = ranges[f"axis_{name}"]
                ranges[f"axis_{name}"] = (column - column.min()) / (column.max() - column.min())
            return crs_table(ranges, SCORING).set_index(["dataset", "encoder"])["crs"]

        panel = random_panel(1, 12, datasets=("a",))
        newcomers = random_panel(2, 3, datasets=("a",), prefix="new")
        before, after = cohort_crs(panel), cohort_crs(pd.concat([panel, newcomers]))
        assert (after[before.index] - before).abs().max() > 0.01

    @pytest.mark.parametrize(
        ("scoring", "message"),
        [
            (
                changed(SCORING, protocol_version="1.1"),
                "protocol_version is '1.1' in the scoring file but '1.0' in the frozen reference",
            ),
            (changed(SCORING, weights=Weights(0.5, 0.35, 0.15)), "weights.dominance is 0.5 .* 0.6"),
            (
                changed(
                    SCORING,
                    axes=MappingProxyType(
                        {
                            **SCORING.axes,
                            "calibration": dataclasses.replace(
                                SCORING.axes["calibration"], zero=0.25
                            ),
                        }
                    ),
                ),
                "axes.calibration.zero is 0.25 in the scoring file but 0.3",
            ),
        ],
    )
    def test_another_scoring_is_refused(self, reference, axes, scoring, message):
        with pytest.raises(UserError, match=message):
            crs_table(axes, scoring, reference)

    def test_a_changed_panel_is_refused(self, reference, axes):
        value = axes["ece"].where((axes.encoder != "enc1") | (axes.seed != 1), axes["ece"] + 1e-16)
        assert not value.equals(axes["ece"])
        with pytest.raises(UserError, match=r"enc1 on a, seed 1: ece is .*, frozen as .*published"):
            crs_table(axes.assign(ece=value), SCORING, reference)
        with pytest.raises(UserError, match="enc2 on a, seed 2: frozen, but absent from the runs"):
            crs_table(axes[(axes.encoder != "enc2") | (axes.seed != 2)], SCORING, reference)
        more = pd.concat(
            [axes, axes[(axes.encoder == "enc2") & (axes.dataset == "a")].assign(dataset="c")]
        )
        with pytest.raises(UserError, match="enc2 on c, seed 0: not in the frozen panel"):
            crs_table(more, SCORING, reference)

    def test_a_newcomer_on_an_uncovered_data_set_is_refused(self, reference):
        newcomer = random_panel(9, n_encoders=1, datasets=("z",), prefix="new")
        with pytest.raises(UserError, match="has no data set z; it covers a, b"):
            crs_table(newcomer, SCORING, reference)

    def test_a_floor_in_its_panel_is_refused_and_left_out_on_freezing(self, axes, tmp_path):
        everyone = freeze_reference(tmp_path / "all.json", axes, SCORING, {})
        with pytest.raises(UserError, match="enc3 is a floor encoder but belongs to the frozen"):
            crs_table(axes, SCORING, everyone, floors=["enc3"])
        reference = freeze_reference(tmp_path / "some.json", axes, SCORING, {}, floors=["enc3"])
        assert "enc3" not in reference.encoders

    def test_is_never_overwritten_with_other_content(self, reference, axes, tmp_path):
        path = tmp_path / "published.json"
        before = path.read_bytes()
        freeze_reference(path, axes, SCORING, {"runs": "00ff"})
        assert path.read_bytes() == before
        with pytest.raises(UserError, match="frozen reference with other content"):
            freeze_reference(path, axes[axes.encoder != "enc1"], SCORING, {"runs": "00ff"})
        assert path.read_bytes() == before

    def test_an_incomplete_panel_cannot_be_frozen(self, axes, tmp_path):
        with pytest.raises(UserError, match=r"cannot freeze enc0 on .* no CRS .no peer"):
            freeze_reference(tmp_path / "one.json", axes[axes.encoder == "enc0"], SCORING, {})
        assert not (tmp_path / "one.json").exists()

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda c: c["scores"]["enc1"].update(a=0.5), "published score enc1.a is 0.5 but"),
            (lambda c: c["panel"]["enc1"]["a"]["0"].update(ece=0.29), "but follows as"),
            (lambda c: c["panel"]["enc1"]["a"]["0"].pop("ece"), "is damaged"),
            (lambda c: c.update(digests=[]), "is damaged"),
            (lambda c: c.pop("scores"), "not a frozen reference"),
            (lambda c: c["scoring"].update(wieghts={}), "unknown key 'wieghts'"),
        ],
    )
    def test_an_edited_file_is_refused(self, reference, tmp_path, edit, message):
        path = tmp_path / "published.json"
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"published\.json is not whole"):
            load_reference(path)
        del content["seal"]
        write_json(path, content)
        with pytest.raises(UserError, match=message):
            load_reference(path)


# --- the bootstrap --------------------------------------------------------------------------------


class TestSeedBootstrap:
    def test_agrees_with_scoring_every_possible_draw(self):
        axes = random_panel(3, n_encoders=5, n_seeds=3)
        measures = axes[axes["seed"] != SEED_MEAN].drop(columns=[f"axis_{name}" for name in AXES])
        draws = []
        for draw in itertools.product(range(3), repeat=3):
            drawn = pd.concat(
                [measures[measures["seed"] == s].assign(seed=i) for i, s in enumerate(draw)]
            )
            draws.append(slow_crs(finish_axes(drawn, SCORING)))
        result = seed_bootstrap(axes, SCORING)
        table = result.table.set_index(["dataset", "encoder"])
        for dataset in ("a", "b", AGGREGATE):
            encoders = sorted(e for d, e in table.index if d == dataset)
            values = np.array([[draw[dataset, e] for e in encoders] for draw in draws])
            values = values.round(12)
            ranks = np.array([scipy_stats.rankdata(-row, method="min") for row in values])
            own = table.loc[dataset]
            np.testing.assert_allclose(own["p_rank1"], (ranks == 1).mean(axis=0), atol=0.02)
            np.testing.assert_allclose(own["p_top3"], (ranks <= 3).mean(axis=0), atol=0.02)
            np.testing.assert_allclose(own["mean_rank"], ranks.mean(axis=0), atol=0.06)
            np.testing.assert_allclose(own["crs_se"], values.std(axis=0), atol=0.005)
            # The draws of one seed three times have a share of 1/27 each, more than 2.5 %.
            np.testing.assert_allclose(own["crs_low"], values.min(axis=0), atol=1e-9)
            np.testing.assert_allclose(own["crs_high"], values.max(axis=0), atol=1e-9)

    def test_the_estimate_is_the_published_score(self):
        axes = random_panel(4, n_encoders=7)
        result = seed_bootstrap(axes, SCORING, floors=["enc2"], replicates=100)
        scores = crs_table(axes, SCORING, floors=["enc2"]).set_index(["dataset", "encoder"])
        table = result.table.set_index(["dataset", "encoder"])
        assert set(table.index) == set(scores.index)
        assert (table["crs"] == scores.loc[table.index, "crs"]).all()

    def test_is_the_same_every_time_and_in_any_order(self):
        axes = random_panel(5)
        first = seed_bootstrap(axes, SCORING, replicates=500)
        again = seed_bootstrap(axes.sample(frac=1, random_state=1), SCORING, replicates=500)
        for name in ("table", "pairs", "ranks"):
            pd.testing.assert_frame_equal(
                getattr(first, name), getattr(again, name), check_exact=True
            )

    def test_what_all_encoders_share_is_no_uncertainty_of_their_difference(self):
        # The worst axis alone is the score; a is always 0.1 above b, though seeds differ by 0.4.
        worst_only = changed(SCORING, weights=Weights(0.0, 0.0, 1.0))
        axes = axes_of(
            {
                "a": {"x": [(level + 0.1, 1, 1, 1) for level in (0.2, 0.4, 0.6)]},
                "b": {"x": [(level, 1, 1, 1) for level in (0.2, 0.4, 0.6)]},
            }
        )
        result = seed_bootstrap(axes, worst_only)
        pair = result.pairs[result.pairs["dataset"] == "x"].iloc[0]
        assert (pair["low"], pair["high"]) == pytest.approx((0.1, 0.1), abs=1e-12)
        assert pair["p_a_above"] == 1
        assert pair["separated"]
        table = result.table.set_index(["dataset", "encoder"])
        assert table.loc[("x", "a"), "crs_high"] - table.loc[("x", "a"), "crs_low"] > 0.2
        assert table.loc["x", "tier"].tolist() == [1, 2]
        assert table.loc["x", "p_rank1"].tolist() == [1, 0]

    @pytest.mark.parametrize("gap", [0.005, 0.03])
    def test_separation_of_means_is_the_paired_t_test(self, gap):
        worst_only = changed(SCORING, weights=Weights(0.0, 0.0, 1.0))
        noise = np.random.default_rng(6).normal(0, 0.01, size=(2, 5))
        a, b = 0.5 + gap + noise[0], 0.5 + noise[1]
        axes = axes_of(
            {name: {"x": [(v, 1, 1, 1) for v in values]} for name, values in (("a", a), ("b", b))}
        )
        pair = seed_bootstrap(axes, worst_only).pairs.iloc[0]
        assert pair["se"] == pytest.approx((a - b).std() / math.sqrt(5), rel=0.03)
        assert pair["separated"] == (scipy_stats.ttest_rel(a, b).pvalue < 0.05)

    def test_ranks_are_distributions_and_floors_have_none(self):
        result = seed_bootstrap(random_panel(7), SCORING, floors=["enc1"], replicates=300)
        sums = result.ranks.groupby(["dataset", "encoder"])["probability"].sum()
        assert sums.to_numpy() == pytest.approx(np.ones(len(sums)))
        assert "enc1" not in set(result.ranks["encoder"]) | set(result.pairs["encoder_a"])
        floor = result.table[result.table["encoder"] == "enc1"]
        assert floor[["p_rank1", "p_top3", "mean_rank", "tier"]].isna().all(axis=None)
        assert floor[["crs", "crs_low", "crs_high"]].notna().all(axis=None)

    def test_a_cell_without_score_is_left_out_with_its_aggregate(self):
        axes = random_panel(8, n_encoders=4)
        gap = (axes["encoder"] == "enc0") & (axes["dataset"] == "a")
        measures = axes[axes["seed"] != SEED_MEAN].copy()
        measures.loc[gap & (measures["seed"] == 1), "ece"] = math.nan
        table = seed_bootstrap(finish_axes(measures, SCORING), SCORING, replicates=50).table
        has = table.groupby("encoder")["dataset"].agg(set)
        assert has["enc0"] == {"b"}
        assert has["enc2"] == {"a", "b", AGGREGATE}

    def test_a_frozen_panel_stays_where_it_is(self, tmp_path):
        # The newcomer lies above the frozen mean of a in every draw of its own seeds.
        panel = axes_of(
            {
                "a": {"x": [(v, 0.5, 0.5, 0.5) for v in (0.1, 0.9)]},
                "b": {"x": [(v, 0.4, 0.4, 0.4) for v in (0.1, 0.2)]},
            }
        )
        newcomer = axes_of({"c": {"x": [(v, 0.6, 0.6, 0.6) for v in (0.55, 0.6)]}})
        reference = freeze_reference(tmp_path / "frozen.json", panel, SCORING, {})
        frozen = seed_bootstrap(newcomer, SCORING, reference).table.set_index(
            ["dataset", "encoder"]
        )
        assert set(frozen.loc["x"].index) == {"a", "b", "c"}
        own = seed_bootstrap(pd.concat([panel, newcomer]), SCORING).table.set_index(
            ["dataset", "encoder"]
        )
        width = {
            name: table.loc[("x", "c"), "crs_high"] - table.loc[("x", "c"), "crs_low"]
            for name, table in (("frozen", frozen), ("own", own))
        }
        assert width["frozen"] < 0.05
        assert width["own"] > 0.2

    def test_needs_two_seeds_and_the_same_ones_everywhere(self):
        with pytest.raises(UserError, match=r"at least two seeds, found \[0\]"):
            seed_bootstrap(random_panel(0, n_seeds=1), SCORING)
        axes = random_panel(0, n_seeds=3)
        axes = axes[(axes["encoder"] != "enc1") | (axes["seed"] != 2)]
        with pytest.raises(UserError, match=r"enc1 on a has \[0, 1\], together .* \[0, 1, 2\]"):
            seed_bootstrap(axes, SCORING)


@pytest.mark.slow
class TestTiers:
    def test_a_boundary_needs_every_pair_across_it_separated(self):
        separated = np.array(
            [
                [0, 0, 1, 1],
                [0, 0, 0, 1],
                [1, 0, 0, 1],
                [1, 1, 1, 0],
            ]
        )
        # The first and third differ, but neither differs from the second.
        assert tiers([0.9, 0.8, 0.7, 0.2], separated).tolist() == [1, 1, 1, 2]
        shuffled = [3, 0, 2, 1]
        assert tiers(
            np.array([0.9, 0.8, 0.7, 0.2])[shuffled], separated[np.ix_(shuffled, shuffled)]
        ).tolist() == [2, 1, 1, 1]

    def test_one_uncertain_encoder_can_hold_a_tier_together(self):
        # The first two differ, but the last is too uncertain to separate from either.
        separated = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
        assert tiers([0.9, 0.8, 0.7], separated).tolist() == [1, 1, 1]

    def test_nobody_and_everybody_separated(self):
        assert tiers([0.1, 0.3, 0.2], np.zeros((3, 3))).tolist() == [1, 1, 1]
        assert tiers([0.1, 0.3, 0.2], 1 - np.eye(3)).tolist() == [3, 1, 2]
        assert tiers([], np.zeros((0, 0))).tolist() == []

    @pytest.mark.parametrize("n_encoders", [2, 3, 6])
    def test_equal_encoders_end_in_one_tier(self, n_encoders):
        truth = np.full((n_encoders, 4), 0.7)
        trials = 40
        one = 0
        for trial in range(trials):
            result = seed_bootstrap(noisy_panel(truth, 5, trial), SCORING, replicates=500)
            one += result.table.loc[result.table["dataset"] == AGGREGATE, "tier"].max() == 1
        assert one >= 0.95 * trials

    def test_a_clear_winner_is_alone_in_the_first_tier(self):
        truth = np.full((6, 4), 0.7)
        truth[2] += 0.1
        found = 0
        for trial in range(20):
            axes = noisy_panel(truth, 5, trial)
            table = add_tiers(
                crs_table(axes, SCORING), seed_bootstrap(axes, SCORING, replicates=500)
            )
            first = table[(table["dataset"] == AGGREGATE) & (table["tier"] == 1)]
            found += first["encoder"].tolist() == ["enc02"]
        assert found >= 19

    def test_tiers_fill_the_table_of_scores_and_change_nothing_else(self):
        axes = random_panel(1)
        scores = crs_table(axes, SCORING, floors=["enc2"])
        assert scores["tier"].isna().all()
        table = add_tiers(scores, seed_bootstrap(axes, SCORING, floors=["enc2"], replicates=50))
        pd.testing.assert_frame_equal(table.drop(columns="tier"), scores.drop(columns="tier"))
        assert table["tier"].isna().tolist() == (table["encoder"] == "enc2").tolist()


class TestIntervals:
    @pytest.mark.slow
    def test_of_twenty_seeds_cover_about_as_often_as_they_say(self):
        # Smooth scores: the worst axis alone, so that the truth has no jumps of dominance in it.
        worst_only = changed(SCORING, weights=Weights(0.0, 0.0, 1.0))
        truth = np.ones((4, 4)) * [[0.5, 0.9, 0.9, 0.9]] + np.arange(4)[:, None] * 0.02
        inside = []
        for trial in range(60):
            result = seed_bootstrap(noisy_panel(truth, 20, trial), worst_only, replicates=500).table
            own = result[result["dataset"] == AGGREGATE].sort_values("encoder")
            inside += ((own["crs_low"] <= truth[:, 0]) & (truth[:, 0] <= own["crs_high"])).tolist()
        assert 0.88 <= np.mean(inside) <= 0.98
