"""The studies, on a synthetic world of the published grid: against SciPy, brute force, by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crsbench.config.model import Config
from crsbench.core.files import read_table
from crsbench.core.names import AGGREGATE, SEED_MEAN
from crsbench.evaluation.runs import CONFIDENCE_COLUMNS
from crsbench.report import Material, write_report
from crsbench.report.material import MadeStudy
from crsbench.score import AXES, Weights, crs_table, freeze_reference
from crsbench.score.axes import finish_axes
from crsbench.score.tables import PAIR_COLUMNS, RANK_COLUMNS, score_tables
from crsbench.studies.axis_redundancy import area_under_learning_curve
from crsbench.studies.base import write_study
from crsbench.studies.inputs import Inputs
from crsbench.studies.reference_invariance import cohort_crs
from crsbench.studies.registry import Study
from crsbench.studies.reproduction import COLUMNS
from crsbench.studies.sensitivity import simplex
from worlds.studies import STUDIES, World

GENERAL = ["resnet50", "vit_b16", "clip", "siglip", "dinov2", "mae"]


@pytest.fixture(scope="module")
def world(published: Config) -> World:
    return World.of(published)


@pytest.fixture(scope="module")
def inputs(world: World) -> Inputs:
    return world.inputs()


@pytest.fixture(scope="module")
def with_floor(world: World) -> Inputs:
    return world.with_floors(["mae"]).inputs()


def with_scores(inputs: Inputs, auroc: list[float], crs: list[float]) -> Inputs:
    """The aggregate with these values for its encoders, in the order of their names."""
    table = inputs.crs.copy()
    rows = table["dataset"] == AGGREGATE
    table.loc[rows, "macro_auroc"] = auroc
    table.loc[rows, "crs"] = crs
    return inputs.having(crs=table)


def crs_of(axes: np.ndarray, peers: np.ndarray, weights: Weights) -> list[float]:
    """CRS by its definition, in loops: (E, 4) axes against (P, 4) peers; equal rows are oneself."""
    scores = []
    for own in axes.tolist():
        others = [peer for peer in peers.tolist() if peer != own]
        wins = sum(
            all(a >= b for a, b in zip(own, peer, strict=True)) and own != peer for peer in others
        )
        distance = sum((1 - a) ** 2 for a in own) ** 0.5
        parts = (wins / len(others), 1 - distance / 2, min(own))
        factors = (weights.dominance, weights.proximity, weights.worst_axis)
        scores.append(sum(w * part for w, part in zip(factors, parts, strict=True)))
    return scores


# --- every study --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_writes_the_same_bytes_again_and_says_a_sentence(
    name: str, with_floor: Inputs, tmp_path: Path
) -> None:
    for folder in ("once", "again"):
        (tmp_path / folder).mkdir()
        files = tmp_path / folder / "study.parquet", tmp_path / folder / "study.svg"
        write_study(*files, name, STUDIES[name](with_floor))
    for file in ("study.parquet", "study.svg"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    table, metadata = read_table(tmp_path / "once/study.parquet")
    assert len(table)
    assert metadata["study"] == name
    assert metadata["sentence"].endswith(".")
    assert not re.search(r"\bnan\b", metadata["sentence"])
    svg = (tmp_path / "once/study.svg").read_text("utf-8")
    assert svg.startswith("<svg")
    assert "mathdefault" not in svg  # mathematics is shown as it is written


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_does_not_depend_on_the_order_of_rows(name: str, with_floor: Inputs) -> None:
    shuffled = with_floor.having(
        runs=with_floor.runs.sample(frac=1, random_state=1).reset_index(drop=True),
        axes=with_floor.axes.sample(frac=1, random_state=2).reset_index(drop=True),
        crs=with_floor.crs.sample(frac=1, random_state=3).reset_index(drop=True),
    )
    first, second = STUDIES[name](with_floor), STUDIES[name](shuffled)
    pd.testing.assert_frame_equal(first.table, second.table, check_exact=True)
    assert first.findings == second.findings
    assert first.sentence == second.sentence


NEED_NOBODY_ELSE = {"label_efficiency": 5, "stress_calibration": 15}
"""Studies that say something of one encoder, with their rows: a fraction or a condition each."""


@pytest.mark.parametrize("name", STUDIES)
def test_a_panel_of_one_encoder_gives_reasons_not_numbers(
    name: str, world: World, tmp_path: Path
) -> None:
    alone = world.only(["vit_b16"], ["isic2019"]).inputs()
    study = STUDIES[name](alone)
    write_study(tmp_path / "s.parquet", tmp_path / "s.svg", name, study)
    if name in NEED_NOBODY_ELSE:
        assert len(study.table) == NEED_NOBODY_ELSE[name]
    else:
        assert study.table.empty
        assert study.findings == {}
        assert re.match(r"Not run: .+\.$", study.sentence)
        assert study.sentence.split()[2] in (tmp_path / "s.svg").read_text("utf-8")


@pytest.mark.parametrize("name", [name for name in STUDIES if not name.startswith("floor")])
def test_floors_are_in_no_ranking(name: str, with_floor: Inputs) -> None:
    study = STUDIES[name](with_floor)
    text = study.table.select_dtypes(["object", "string"])
    assert not text.isin(["mae"]).any().any()
    assert not any("mae" in key.split(".") for key in study.findings)


# --- rank agreement -----------------------------------------------------------------------------


def test_twenty_one_inversions_of_105_pairs_are_a_tau_of_0_600(inputs: Inputs) -> None:
    # Reversing seven encoders in a row inverts 7 · 6 / 2 = 21 pairs.
    auroc = [0.9 - 0.01 * place for place in range(15)]
    crs = auroc[:4] + auroc[4:11][::-1] + auroc[11:]
    study = STUDIES["rank_agreement"](with_scores(inputs, auroc, crs))
    found = study.findings
    assert (found["inverted_pairs"], found["tied_pairs"], found["pairs"]) == (21, 0, 105)
    assert found["kendall_tau"] == pytest.approx(0.6, abs=1e-12)
    assert found["top3_overlap"] == 1
    assert found["mean_absolute_rank_shift"] == pytest.approx(2 * (6 + 4 + 2) / 15)
    assert "21 of 105 pairs are inverted" in study.sentence


def test_rank_agreement_is_that_of_scipy(inputs: Inputs) -> None:
    found = STUDIES["rank_agreement"](inputs).findings
    rows = inputs.crs[inputs.crs["dataset"] == AGGREGATE]
    tau = stats.kendalltau(rows["macro_auroc"], rows["crs"]).statistic
    rho = stats.spearmanr(rows["macro_auroc"], rows["crs"]).statistic
    assert found["kendall_tau"] == pytest.approx(tau, abs=1e-12)
    assert found["spearman_rho"] == pytest.approx(rho, abs=1e-12)
    inverted = sum(
        (a.macro_auroc - b.macro_auroc) * (a.crs - b.crs) < 0
        for a, b in combinations(rows.itertuples(), 2)
    )
    assert found["inverted_pairs"] == inverted


def test_the_top_three_of_three_encoders_say_nothing(world: World) -> None:
    table = STUDIES["rank_agreement"](world.only(GENERAL[:3]).inputs()).table
    assert table["top3_overlap"].isna().all()
    assert table["kendall_tau"].notna().all()


def test_movers_go_from_one_rank_to_the_other(inputs: Inputs) -> None:
    ordered = sorted(world_encoder for world_encoder in inputs.encoders)
    auroc = [0.9 - 0.01 * place for place in range(15)]
    crs = [0.5, *(0.9 - 0.01 * place for place in range(14))]  # the first falls to the last place
    study = STUDIES["movers"](with_scores(inputs, auroc, crs))
    moves = study.table.set_index("encoder")["move"]
    assert moves[ordered[0]] == 1 - 15
    assert (moves.drop(ordered[0]) == 1).all()
    assert study.findings[f"{ordered[0]}.crs_rank"] == 15
    assert study.sentence.endswith("from 1 to 15.")
    same = STUDIES["movers"](with_scores(inputs, auroc, auroc))
    assert same.sentence.startswith("No encoder changes its place")


# --- institutional shift ------------------------------------------------------------------------


def test_the_institutional_shift_is_tested_as_scipy_does(inputs: Inputs) -> None:
    study = STUDIES["institutional_shift"](inputs)
    runs = inputs.runs[(inputs.runs["condition"] == "mimic") & (inputs.runs["percent"] == 100)]
    means = runs.groupby("encoder")["macro_auroc"].mean()
    general = means[GENERAL]
    medical = means.drop(GENERAL)
    test = stats.ttest_ind(medical, general, equal_var=False)
    found = study.findings
    assert found["chexpert.mimic.welch_p"] == pytest.approx(test.pvalue, rel=1e-12)
    assert found["chexpert.mimic.medical_macro_auroc"] == pytest.approx(medical.mean())
    assert found["chexpert.mimic.general_macro_auroc"] == pytest.approx(general.mean())
    assert len(study.table) == 15
    assert "the 9 medical encoders" in study.sentence
    assert "the 6 general ones" in study.sentence


def test_a_target_with_fewer_classes_is_judged_on_the_shared_ones(world: World) -> None:
    """Then the table of runs has both sides over the same classes, and these count."""
    runs = world.runs.copy()
    elsewhere = runs["condition"] == "mimic"
    runs["source_macro_auroc"] = np.where(elsewhere, 0.875, np.nan)
    runs["target_macro_auroc"] = np.where(elsewhere, 0.625 + runs["seed"] / 64, np.nan)
    runs.loc[
        elsewhere & (runs["encoder"] == "clip") & (runs["seed"] == 2), "target_macro_auroc"
    ] = None
    inputs = replace(world, runs=runs).inputs()
    table = STUDIES["institutional_shift"](inputs).table
    assert len(table) == 14  # clip is undefined in one seed, so it has no mean
    assert (table["source_auroc"] == 0.875).all()
    assert (table["target_auroc"] == 0.65625).all()
    assert (table["drop"] == 0.21875).all()
    predicted_ranking = STUDIES["external_validity"](inputs).table
    assert (predicted_ranking["target_auroc"] == 0.65625).all()
    clean = inputs.crs[inputs.crs["dataset"] == "chexpert"].set_index("encoder")["macro_auroc"]
    assert (
        predicted_ranking["source_auroc"].tolist() == clean[predicted_ranking["encoder"]].tolist()
    )


def test_groups_too_small_for_a_test_keep_their_table(world: World) -> None:
    study = STUDIES["institutional_shift"](world.only([*GENERAL, "panderm"]).inputs())
    assert len(study.table) == 7
    assert "1 medical and 6 general encoders are too few" in study.sentence
    assert not any("welch" in name for name in study.findings)


# --- label efficiency ---------------------------------------------------------------------------


def curves(world: World, aurocs: dict[str, list[float]]) -> Inputs:
    """The world with the clean AUROC of some encoders on ISIC 2019 set, from 1 to 100 %."""
    runs = world.runs.copy()
    clean = (runs["dataset"] == "isic2019") & (runs["condition"] == "clean")
    for encoder, values in aurocs.items():
        for percent, value in zip((1, 5, 10, 25, 100), values, strict=True):
            rows = clean & (runs["encoder"] == encoder) & (runs["percent"] == percent)
            runs.loc[rows, "macro_auroc"] = value
    return replace(world, runs=runs).inputs()


def test_the_first_fraction_that_reaches_the_baseline(world: World) -> None:
    given = {
        "vit_b16": [0.60, 0.70, 0.75, 0.78, 0.80],
        "medgemma": [0.80, 0.81, 0.82, 0.83, 0.84],  # reached means at least as high
        "panderm": [0.70, 0.79, 0.85, 0.79, 0.86],  # the first time counts
        "mae": [0.50, 0.60, 0.70, 0.75, 0.79],
    }
    study = STUDIES["label_efficiency"](curves(world, given))
    first = {
        name.rsplit(".", 1)[1]: value
        for name, value in study.findings.items()
        if name.startswith("first_percent.isic2019.")
    }
    assert {name: first[name] for name in given} == {
        "vit_b16": 100,
        "medgemma": 1,
        "panderm": 10,
        "mae": "never",
    }
    assert study.findings["at_1_percent.isic2019.medgemma"] == pytest.approx(0.80)
    rows = study.table[(study.table["encoder"] == "mae") & (study.table["dataset"] == "isic2019")]
    assert rows["first_percent"].isna().all()
    assert len(study.table) == 43 * 5


def test_medical_encoders_that_match_the_baseline_are_counted(world: World) -> None:
    top = [0.99] * 5
    given = dict.fromkeys(("medgemma", "panderm", "rad_dino", "clip"), top)
    given |= {"vit_b16": [0.97, 0.97, 0.97, 0.97, 0.98]}
    found = STUDIES["label_efficiency"](curves(world, given)).findings
    assert found["medical_encoders_reaching_baseline_at_1_percent.isic2019"] == 3


def test_an_absent_baseline_is_said_and_nobody_is_compared(world: World) -> None:
    study = STUDIES["label_efficiency"](world.only(["clip", "panderm", "mae"]).inputs())
    assert "ViT-B/16" in study.sentence or "vit_b16" in study.sentence
    assert "no run at 100 %" in study.sentence
    assert study.table["first_percent"].isna().all()
    assert not any(name.startswith("first_percent") for name in study.findings)


# --- axis redundancy ----------------------------------------------------------------------------


def test_the_area_under_a_learning_curve_by_hand() -> None:
    # Over the decades of 1, 10, 100 %: trapezoids 0.65 and 0.75, each half of the length.
    assert area_under_learning_curve([1, 10, 100], [0.6, 0.7, 0.8]) == pytest.approx(0.7)
    assert area_under_learning_curve([5, 20, 100], [0.7, 0.7, 0.7]) == pytest.approx(0.7)
    assert np.isnan(area_under_learning_curve([1, 100], [0.6, np.nan]))


def test_axis_redundancy_is_that_of_scipy_over_43_cells(inputs: Inputs) -> None:
    study = STUDIES["axis_redundancy"](inputs)
    cells = study.table[study.table["dataset"] != AGGREGATE]
    encoders = study.table[study.table["dataset"] == AGGREGATE]
    assert (len(cells), len(encoders)) == (43, 15)
    clean = inputs.runs[inputs.runs["condition"] == "clean"]
    for name, rows in (("cells", cells), ("encoders", encoders)):
        for measure in ("aulc", "retention"):
            rho = stats.spearmanr(rows[measure], rows["macro_auroc"]).statistic
            found = study.findings[f"{measure}_vs_full_auroc.{name}"]
            assert found == pytest.approx(rho, abs=1e-12)
    cell = clean[(clean["encoder"] == "clip") & (clean["dataset"] == "chexpert")]
    by_percent = cell.groupby("percent")["macro_auroc"].mean()
    x = np.log10(by_percent.index)
    area = sum(
        (x[i + 1] - x[i]) * (by_percent.iloc[i] + by_percent.iloc[i + 1]) / 2 for i in range(4)
    ) / (x[-1] - x[0])
    row = cells[(cells["encoder"] == "clip") & (cells["dataset"] == "chexpert")].iloc[0]
    assert row["aulc"] == pytest.approx(area, abs=1e-12)
    means = [by_percent[p] for p in (1, 5, 10, 25)]
    assert row["retention"] == pytest.approx(np.mean(means) / by_percent[100], abs=1e-3)


# --- external validity --------------------------------------------------------------------------


def test_the_crs_without_the_shift_is_that_of_runs_without_it(world: World) -> None:
    study = STUDIES["external_validity"](world.inputs())
    unshifted = replace(
        world,
        runs=world.runs[world.runs["condition"] != "mimic"].reset_index(drop=True),
        datasets={name: {**spec, "shift": []} for name, spec in world.datasets.items()},
    )
    crs = unshifted.tables()["crs"]
    expected = crs[crs["dataset"] == "chexpert"].set_index("encoder")["crs"]
    found = study.table.set_index("encoder")["crs_without_shift"]
    pd.testing.assert_series_equal(found, expected, check_names=False, check_exact=True)
    mimic = world.runs[(world.runs["condition"] == "mimic") & (world.runs["percent"] == 100)]
    auroc = mimic.groupby("encoder")["macro_auroc"].mean()
    rho = stats.spearmanr(expected.sort_index(), auroc.sort_index()).statistic
    name = "chexpert.mimic.spearman_crs_vs_target_auroc"
    assert study.findings[name] == pytest.approx(rho, abs=1e-12)


# --- leave one data set out ---------------------------------------------------------------------


def test_leaving_a_data_set_out_by_hand(inputs: Inputs) -> None:
    study = STUDIES["leave_one_dataset_out"](inputs)
    scores = inputs.crs[inputs.crs["dataset"] != AGGREGATE]
    by = scores.pivot(index="encoder", columns="dataset", values="crs")
    for row in study.table.itertuples():
        others = by.drop(columns=row.held_out).mean(axis=1)  # of those that the encoder has
        both = pd.DataFrame({"others": others, "held_out": by[row.held_out]}).dropna()
        rho = stats.spearmanr(both["others"], both["held_out"]).statistic
        assert row.spearman_rho == pytest.approx(rho, abs=1e-12)
        assert row.n_encoders == (13 if row.held_out == "aptos2019" else 15)
        assert row.recovered == (both["others"].idxmax() == both["held_out"].idxmax())
    assert study.findings["winners_recovered"] == study.table["recovered"].sum()


# --- reference invariance -----------------------------------------------------------------------


def test_newcomers_move_cohort_scores_and_no_anchored_score(inputs: Inputs) -> None:
    study = STUDIES["reference_invariance"](inputs)
    table = study.table
    assert study.findings["trials"] == table["trial"].nunique() == 30
    assert (study.findings["panel"], study.findings["newcomers"]) == (12, 3)
    assert len(table) == 30 * 12
    assert (table["anchored_before"] == table["anchored_after"]).all()
    assert study.findings["anchored_shift"] == 0
    assert study.findings["cohort_shift_max"] > study.findings["cohort_shift_mean"] > 0
    assert table["newcomers"].nunique() == 30  # no trial twice
    for row in table.itertuples():
        assert row.encoder not in row.newcomers.split(", ")
    assert "exactly 0" in study.sentence


def test_the_cohort_score_is_that_of_its_definition(inputs: Inputs) -> None:
    means = inputs.axes[inputs.axes["seed"] == SEED_MEAN]
    means = means[means["dataset"] == "isic2019"]
    values = means[[f"axis_{name}" for name in AXES]].to_numpy()
    cohort = (values - values.min(axis=0)) / (values.max(axis=0) - values.min(axis=0))
    expected = crs_of(cohort, cohort, inputs.scoring.weights)
    found = cohort_crs(means, inputs.scoring)[means["encoder"]]
    assert found.to_numpy() == pytest.approx(expected, abs=1e-12)


def test_a_small_panel_gives_up_fewer_and_says_so(world: World) -> None:
    study = STUDIES["reference_invariance"](world.only(GENERAL[:4]).inputs())
    found = study.findings
    assert (found["trials"], found["panel"], found["newcomers"]) == (4, 3, 1)
    assert study.sentence.startswith("In 4 trials, 1 of 4 encoders joining the other 3")


# --- sensitivity --------------------------------------------------------------------------------


def test_the_grid_covers_the_simplex() -> None:
    weights = simplex(20)
    assert len(weights) == 231
    assert len(np.unique(weights, axis=0)) == 231
    assert (weights >= 0).all()
    assert weights.sum(axis=1) == pytest.approx(1)
    assert {(1, 0, 0), (0, 1, 0), (0, 0, 1)} <= {tuple(row) for row in weights.tolist()}


def test_leaders_over_the_weights_are_those_of_the_score_at_these_weights(world: World) -> None:
    inputs = world.inputs()
    study = STUDIES["weight_sensitivity"](inputs)
    in_use = inputs.crs[inputs.crs["dataset"] == AGGREGATE].sort_values("encoder")
    for place in (0, 57, 110, 230):
        row = study.table.iloc[place]
        weights = Weights(row["dominance"], row["proximity"], row["worst_axis"])
        other = replace(world, scoring=replace(world.scoring, weights=weights))
        crs = other.tables()["crs"]
        ranked = crs[crs["dataset"] == AGGREGATE].sort_values("encoder")
        assert row["leader"] == ", ".join(ranked.loc[ranked["crs_rank"] == 1, "encoder"])
        tau = stats.kendalltau(ranked["crs"], in_use["crs"]).statistic
        assert row["kendall_tau"] == pytest.approx(tau, abs=1e-12)
    shares = [v for name, v in study.findings.items() if name.startswith("share_first")]
    assert sum(shares) >= 1 - 1e-12


def test_scores_at_moved_anchors_are_those_of_such_a_scoring_file(world: World) -> None:
    study = STUDIES["anchor_sensitivity"](world.inputs())
    assert len(study.table) == 5**4
    in_use = study.table[(study.table[[f"factor_{name}" for name in AXES]] == 1).all(axis=1)]
    assert in_use["kendall_tau"].tolist() == [1]
    for place in (0, 200, 624):
        row = study.table.iloc[place]
        axes = {
            name: replace(axis, zero=axis.one + row[f"factor_{name}"] * (axis.zero - axis.one))
            for name, axis in world.scoring.axes.items()
        }
        crs = replace(world, scoring=replace(world.scoring, axes=axes)).tables()["crs"]
        ranked = crs[(crs["dataset"] == AGGREGATE) & (crs["crs_rank"] == 1)]
        assert row["leader"] == ", ".join(sorted(ranked["encoder"]))


# --- floors -------------------------------------------------------------------------------------


def test_an_encoder_that_is_a_floors_equal_does_not_exceed_it(world: World) -> None:
    runs = world.runs.copy()
    base_model = runs[runs["encoder"] == "mae"].assign(encoder="clip")
    runs = pd.concat([runs[runs["encoder"] != "clip"], base_model], ignore_index=True)
    table = STUDIES["floors"](replace(world, runs=runs).with_floors(["mae"]).inputs()).table
    own = table[table["encoder"] == "clip"]
    assert len(own) == 3 * 4
    assert not own["exceeds_floor"].any()
    assert (own["advantage"] == 0).all()


def test_advantages_are_over_the_best_floor_on_the_axis(world: World) -> None:
    inputs = world.with_floors(["mae", "clip"]).inputs()
    study = STUDIES["floors"](inputs)
    means = inputs.axes[inputs.axes["seed"] == SEED_MEAN].set_index(["encoder", "dataset"])
    for row in study.table.itertuples():
        floor = max(means.at[(name, row.dataset), f"axis_{row.axis}"] for name in ("mae", "clip"))
        assert row.floor_value == floor
        value = means.at[(row.encoder, row.dataset), f"axis_{row.axis}"]
        assert row.advantage == value - floor
        assert row.exceeds_floor == (value > floor)
    below = study.table[(study.table["axis"] == "calibration") & ~study.table["exceeds_floor"]]
    assert study.findings["not_above_floor.calibration"] == len(below)


def axes_of(profiles: dict[str, tuple[float, float, float, float]]) -> pd.DataFrame:
    records = [
        {
            **{"encoder": encoder, "dataset": "isic2019", "seed": 0, "missing": None},
            **{"macro_auroc": 0.5 + a / 2, "ece": 0.3 * (1 - b), "retention": 0.5 + c / 2},
            **dict.fromkeys(("mean_drop", "worst_drop", "drop"), 0.3 * (1 - d)),
            "shift_drop": np.nan,
        }
        for encoder, (a, b, c, d) in profiles.items()
    ]
    return pd.DataFrame(records)


def test_what_the_components_are_worth_to_a_floor_by_hand(world: World) -> None:
    """Two encoders that know something and a floor that keeps what little it has."""
    profiles = {
        "clip": (1.0, 0.5, 0.5, 0.0),
        "vit_b16": (0.75, 0.25, 0.25, 0.0),  # dominated by clip
        "mae": (0.25, 1.0, 1.0, 1.0),  # the floor: dominates nobody, nobody dominates it
    }
    few = world.only(list(profiles), ["isic2019"]).with_floors(["mae"])
    axes = finish_axes(axes_of(profiles), world.scoring)
    crs = crs_table(axes, world.scoring, floors=["mae"])
    study = STUDIES["floor_scores"](few.inputs().having(axes=axes, crs=crs))
    rows = study.table[study.table["dataset"] == AGGREGATE].set_index("encoder")
    floor = rows.loc["mae"]
    assert floor["from_dominance"] == 0
    assert floor["from_proximity"] == pytest.approx(0.25 * (1 - 0.75 / 2))
    assert floor["from_worst_axis"] == pytest.approx(0.15 * 0.25)
    assert floor["dominated_by"] == 0
    assert floor["n_ranked"] == 2
    # clip: 0.6 · 1 (its one peer) + 0.25 · (1 − √1.5 / 2) + 0 = 0.697, above the floor's 0.194
    assert (floor["place"], floor["place_by_proximity"]) == (2, 1)
    assert floor["place_without_dominance"] == 1
    assert rows.loc["vit_b16", "dominated_by"] == 1
    assert rows.loc["clip", "place"] == 1
    assert floor["crs"] == pytest.approx(0.25 * 0.625 + 0.15 * 0.25)


# --- with a frozen reference --------------------------------------------------------------------


def test_a_newcomer_is_studied_beside_the_frozen_panel(world: World, tmp_path: Path) -> None:
    panel = world.only([*GENERAL, "panderm"])
    reference = freeze_reference(
        tmp_path / "panel.json", panel.tables()["axes"], world.scoring, {"runs": "0" * 64}
    )
    newcomer = world.only(["medgemma"])
    shift = {name: spec.get("shift", ()) for name, spec in world.datasets.items()}
    tables = score_tables(newcomer.runs, world.scoring, shift, reference, [], 200)
    published = panel.tables()["crs"].set_index(["encoder", "dataset"])["crs"]
    frozen = tables["crs"].set_index(["encoder", "dataset"])["crs"]
    assert (frozen[published.index] == published).all()
    assert tables["crs"]["tier"].notna().all()
    inputs = newcomer.inputs().having(crs=tables["crs"], axes=tables["axes"], reference=reference)
    assert len(STUDIES["movers"](inputs).table) == 8
    for name in STUDIES:
        write_study(tmp_path / "s.parquet", tmp_path / "s.svg", name, STUDIES[name](inputs))
    page = report(newcomer, tables, tmp_path / "page.html")
    assert "of the frozen reference; not run here" in page
    # On the leaderboard and on each data set's.
    assert page.count('<span class="encoder" dir="auto">panderm</span>') == 4


# --- tables and tiers ---------------------------------------------------------------------------


def test_one_seed_gives_scores_without_tiers_or_intervals(world: World) -> None:
    alone = replace(world, runs=world.runs[world.runs["seed"] == 0].reset_index(drop=True))
    tables = alone.tables()
    assert tables["crs"]["crs"].notna().all()
    assert tables["crs"]["tier"].isna().all()
    assert tables["bootstrap"]["crs_low"].isna().all()
    assert list(tables["bootstrap"]) == list(world.tables()["bootstrap"])
    assert (
        list(tables["bootstrap_pairs"]) == PAIR_COLUMNS == list(world.tables()["bootstrap_pairs"])
    )
    assert (
        list(tables["bootstrap_ranks"]) == RANK_COLUMNS == list(world.tables()["bootstrap_ranks"])
    )


def report(world: World, tables: dict[str, pd.DataFrame], file: Path) -> str:
    none = {"confidence_bins": CONFIDENCE_COLUMNS, "reproduction": COLUMNS}
    empty = {name: pd.DataFrame(columns=list(columns)) for name, columns in none.items()}
    study = MadeStudy(pd.DataFrame({"x": [1]}), "They agree in part.", {}, "<svg/>")
    names = world.encoders, world.datasets, world.targets
    everything = {"runs": world.runs, **tables, **empty}
    write_report(file, Material(everything, {"rank_agreement": study}, *names, world.scoring))
    return file.read_text("utf-8")


def test_the_report_names_no_winner_where_the_first_tier_is_shared(
    world: World, tmp_path: Path
) -> None:
    tables = world.tables()
    crs, pairs = tables["crs"], tables["bootstrap_pairs"]
    ranked = crs[crs["dataset"] == AGGREGATE].sort_values("crs_rank")["encoder"].tolist()
    first, second, third = (world.encoders[name]["title"] for name in ranked[:3])
    crs["tier"] = crs["encoder"].isin(ranked[:3]).map({True: 1, False: 2}).astype("Int64")
    of_first = pairs["encoder_a"].eq(ranked[0]) | pairs["encoder_b"].eq(ranked[0])

    def not_separated(*others: str) -> None:
        others_separate = ~pairs[["encoder_a", "encoder_b"]].isin(others).any(axis=1)
        pairs["separated"] = others_separate | ~of_first

    not_separated(*ranked[1:3])
    page = report(world, tables, tmp_path / "shared.html")
    reported = (
        f"{first} is first, but {second} and {third} cannot be separated from it; three encoders"
    )
    assert reported in page
    assert "They agree in part." in page
    not_separated(ranked[1])
    page = report(world, tables, tmp_path / "two.html")
    assert f"{first} and {second} cannot be separated; three encoders form the first tier." in page
    not_separated()
    crs["tier"] = crs["encoder"].eq(ranked[0]).map({True: 1, False: 2}).astype("Int64")
    page = report(world, tables, tmp_path / "alone.html")
    assert f"{first} leads alone: it is separated from every other encoder." in page


def test_a_finding_that_is_undefined_is_kept_as_missing(tmp_path: Path) -> None:
    study = Study(pd.DataFrame({"a": [1]}), "A sentence.", {"x": float("nan"), "y": np.int64(2)})
    write_study(tmp_path / "s.parquet", tmp_path / "s.svg", "s", study)
    assert read_table(tmp_path / "s.parquet")[1]["findings"] == {"x": None, "y": 2}
