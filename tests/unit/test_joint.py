"""The joint bootstrap against recounting, at its edges, and its ranks by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crsbench.core.errors import UserError
from crsbench.core.files import write_arrays
from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.influence import macro_auroc_influence
from crsbench.score import axes_table, crs_table, load_scoring
from crsbench.score.axes import MeasurePlan
from crsbench.score.joint import AUROC, ECE, Resamples, joint_bootstrap, seed_weights
from crsbench.score.resampling import read_resamples
from worlds.studies import SCORING_FILE

SCORING = load_scoring(SCORING_FILE)
KEYS = [("clean", 100, AUROC), ("clean", 100, ECE), ("clean", 10, AUROC), ("jpeg-1", 100, AUROC)]


def panel(
    levels: dict[str, float], spread: float, n_seeds: int = 3, replicates: int = 400
) -> tuple[pd.DataFrame, dict[tuple[str, str], Resamples]]:
    """SYNTHETIC encoders of these levels, whose cases and seeds move them by a spread."""
    rows, resamples = [], {}
    for place, (encoder, level) in enumerate(levels.items()):
        random = np.random.default_rng(place)
        values = np.array(
            [level, 0.3 - level / 4, level * (0.4 + level / 2), level * (0.7 + level / 4)]
        )
        seeds = values + spread / 10 * random.normal(size=(n_seeds, 4))
        changes = spread * random.normal(size=(replicates, 1, 4)).repeat(n_seeds, axis=1)
        for seed, of_seed in enumerate(seeds):
            for (condition, percent, name), value in zip(KEYS, of_seed, strict=True):
                if name == AUROC:
                    row = {"encoder": encoder, "dataset": "d", "seed": seed}
                    row |= {"condition": condition, "percent": percent, "macro_auroc": value}
                    rows.append(row | {"ece": of_seed[1]})
        seeds_made = np.arange(n_seeds)
        resamples[encoder, "d"] = Resamples(KEYS, seeds_made, seeds, changes, 100, 80)
    return pd.DataFrame(rows), resamples


def made(runs: pd.DataFrame, resamples: dict[tuple[str, str], Resamples], **options: object):
    axes = axes_table(runs, SCORING, {})
    plans = MeasurePlan.by_dataset(runs, {})
    return joint_bootstrap(axes, resamples, plans, SCORING, **options)  # type: ignore[arg-type]


def test_the_scores_are_those_of_the_table_to_the_last_bit() -> None:
    runs, resamples = panel({"a": 0.9, "b": 0.8, "c": 0.7}, 0.01)
    crs = crs_table(axes_table(runs, SCORING, {}), SCORING).set_index(["encoder", "dataset"])["crs"]
    found = made(runs, resamples).table.set_index(["encoder", "dataset"])["crs"]
    assert found.to_dict() == crs.to_dict()


def test_clear_differences_are_separated_and_equal_encoders_are_not() -> None:
    clear = made(*panel({"a": 0.95, "b": 0.8, "c": 0.65}, 0.002)).table
    own = clear[clear["dataset"] == "d"].set_index("encoder")
    assert own["rank_low"].tolist() == own["rank_high"].tolist() == [1, 2, 3]
    runs, resamples = panel(dict.fromkeys("abcd", 0.8), 0.05)
    equal = made(runs, resamples)
    assert not equal.pairs["separated"].any()
    assert (equal.table["rank_low"] == 1).all()
    assert (equal.table["rank_high"] == 4).all()


def test_ranks_are_what_the_separated_pairs_leave() -> None:
    runs, resamples = panel({"a": 0.95, "b": 0.94, "c": 0.6}, 0.01)
    found = made(runs, resamples)
    pairs = found.pairs[found.pairs["dataset"] == "d"].set_index(["encoder_a", "encoder_b"])
    assert pairs["separated"].to_dict() == {("a", "b"): False, ("a", "c"): True, ("b", "c"): True}
    own = found.table[found.table["dataset"] == "d"].set_index("encoder")
    ends = list(zip(own["rank_low"], own["rank_high"], strict=True))
    assert ends == [(1, 2), (1, 2), (3, 3)]


def test_a_pair_within_the_margin_is_equivalent() -> None:
    runs, resamples = panel({"a": 0.8, "b": 0.8}, 1e-4)
    assert not made(runs, resamples, margin=1e-9).pairs["equivalent"].any()
    assert made(runs, resamples, margin=1.0).pairs["equivalent"].all()


def test_floors_have_intervals_and_no_rank() -> None:
    runs, resamples = panel({"a": 0.9, "b": 0.8, "f": 0.5}, 0.01)
    table = made(runs, resamples, floors=["f"]).table.set_index(["encoder", "dataset"])
    assert table.loc["f", "crs_low"].notna().all()
    assert table.loc["f", "rank_low"].isna().all()
    assert table.loc[("a", "d"), "rank_high"] <= 2


def test_one_seed_varies_by_its_cases_alone() -> None:
    assert seed_weights(1, 5).tolist() == [[1.0]] * 6
    runs, resamples = panel({"a": 0.9, "b": 0.7}, 0.01, n_seeds=1)
    table = made(runs, resamples).table
    assert (table["crs_se"] > 0).all()


def test_the_seeds_have_the_unbiased_variance() -> None:
    values = np.random.default_rng(0).normal(size=5)
    means = seed_weights(5, 20_000)[1:] @ values
    assert means.var() == pytest.approx(values.var(ddof=1) / 5, rel=0.03)
    assert seed_weights(5, 10).sum(axis=1) == pytest.approx(np.ones(11))


def test_cells_of_other_seeds_are_refused() -> None:
    runs, resamples = panel({"a": 0.9, "b": 0.8}, 0.01)
    resamples["b", "d"] = replace(resamples["b", "d"], seeds=np.array([0, 1, 7]))
    with pytest.raises(UserError, match="different seeds or counts"):
        made(runs, resamples)


def test_an_interval_stays_within_the_possible_range() -> None:
    table = made(*panel({"a": 0.99, "b": 0.98}, 0.2)).table
    assert table["macro_auroc_high"].max() <= 1
    assert table[["crs_low", "ece_low"]].min().min() >= 0


def test_the_linear_bootstrap_is_that_of_recounting() -> None:
    random = np.random.default_rng(5)
    truth = np.eye(3, dtype=int)[random.integers(0, 3, 400)]
    scores = random.normal(size=(400, 3)) + truth
    weights = random.multinomial(400, np.full(400, 1 / 400), size=1000).astype(float)
    value, influence = macro_auroc_influence(truth, scores)
    linear = value + weights @ influence / 400
    counted = resampled_auroc(truth, scores, weights).mean(axis=1)
    assert np.corrcoef(linear, counted)[0, 1] > 0.995
    assert linear.std() == pytest.approx(counted.std(), rel=0.03)


@pytest.mark.parametrize("floors", [["a"], []])
def test_one_encoder_or_a_floor_alone_has_no_score_and_no_row(floors: list[str]) -> None:
    found = made(*panel({"a": 0.9}, 0.01), floors=floors)
    assert found.table.empty
    assert found.pairs.empty
    assert {"crs_low", "rank_low", "n_cases"} <= set(found.table)


def test_an_encoder_without_a_value_is_left_out() -> None:
    runs, resamples = panel({"a": 0.9, "b": 0.8, "c": 0.7}, 0.01)
    resamples["b", "d"].values[:, 3] = np.nan
    runs.loc[(runs["encoder"] == "b") & (runs["condition"] == "jpeg-1"), "macro_auroc"] = np.nan
    found = made(runs, resamples)
    assert set(found.table["encoder"]) == {"a", "c"}
    assert len(found.pairs[found.pairs["dataset"] == "d"]) == 1


@pytest.mark.parametrize("damaged", ["seeds", "values", "changes"])
def test_resamples_that_do_not_fit_together_are_refused(damaged: str, tmp_path: Path) -> None:
    arrays = {
        "statistics": np.array(["clean\t100\tece", "clean\t100\tmacro_auroc"]),
        "seeds": np.arange(3),
        "values": np.zeros((3, 2)),
        "changes": np.zeros((5, 3, 2)),
        "sizes": np.array([9, 4]),
    }
    write_arrays(tmp_path / "whole.npz", **arrays)
    assert read_resamples(tmp_path / "whole.npz").n_groups == 4
    arrays[damaged] = arrays[damaged][..., :-1]
    write_arrays(tmp_path / "odd.npz", **arrays)
    with pytest.raises(UserError, match="do not fit together"):
        read_resamples(tmp_path / "odd.npz")
