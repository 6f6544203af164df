"""The scorecard: every published figure, ours beside it where there is one, and nothing made up."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import write_table
from crsbench.studies.base import write_study
from crsbench.studies.reproduction import (
    OwnFigures,
    load_published,
    own_figures,
    scorecard,
    write_tsv,
)
from worlds.studies import STUDIES, World

NOT_OF_TABLES = {"recalibration", "depth_sweep", "adaptation"}


@pytest.fixture(scope="module")
def published_file(home: Path) -> Path:
    return home / "config/published.yaml"


@pytest.fixture(scope="module")
def world(published: Config) -> World:
    return World.of(published)


def own_of(world: World, folder: Path, synthetic: bool = False) -> OwnFigures:
    inputs = world.inputs()
    files = []
    for name in STUDIES:
        files.append(folder / f"{name}.parquet")
        write_study(files[-1], folder / f"{name}.svg", name, STUDIES[name](inputs))
    return own_figures(world.tables(), world.scoring, files, world.floors, synthetic)


@pytest.fixture(scope="module")
def whole(
    world: World, published_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> pd.DataFrame:
    """The scorecard of SYNTHETIC runs under the published names."""
    own = own_of(world, tmp_path_factory.mktemp("studies"))
    return scorecard(load_published(published_file), own).set_index("figure")


def test_a_run_of_the_whole_panel_has_every_figure_that_its_tables_can_give(
    whole: pd.DataFrame,
) -> None:
    study = whole.index.str.split(".").str[0]
    of_tables = whole[~study.isin(NOT_OF_TABLES)]
    assert len(of_tables) > 50
    assert (of_tables["ours"].notna() | of_tables["ours_name"].notna()).all()
    assert of_tables["note"].isna().all()
    assert whole["same_panel"].all()
    others = whole[study.isin(NOT_OF_TABLES)]
    assert others[["ours", "difference", "ours_name"]].isna().all().all()
    assert others["note"].str.startswith("not run: this run has no results for").all()


def test_the_counts_of_the_grid_are_the_published_ones(whole: pd.DataFrame) -> None:
    grid = whole[whole.index.str.startswith("grid.")]
    assert len(grid) == 6
    assert (grid["difference"] == 0).all()
    assert whole.at["rank_agreement.pairs", "ours"] == 105
    assert whole.at["reference_invariance.panel", "ours"] == 12


def test_the_difference_is_ours_less_theirs_and_ours_is_the_tables_value(
    whole: pd.DataFrame, world: World
) -> None:
    numbers = whole[whole["ours"].notna()]
    assert (numbers["difference"] == numbers["ours"] - numbers["published"]).all()
    crs = world.tables()["crs"].set_index(["encoder", "dataset"])
    assert whole.at["leaders.crs.panderm", "ours"] == crs.at[("panderm", "aggregate"), "crs"]
    moved = whole.loc["movers.chexzero.auroc_rank"]
    assert (moved["published"], moved["ours"]) == (
        11,
        crs.at[("chexzero", "aggregate"), "auroc_rank"],
    )


def test_the_interval_of_a_pair_turns_with_its_order(whole: pd.DataFrame, world: World) -> None:
    pairs = world.tables()["bootstrap_pairs"]
    row = pairs[
        (pairs["dataset"] == "aggregate")
        & (pairs["encoder_a"] == "medsiglip")
        & (pairs["encoder_b"] == "panderm")
    ].iloc[0]
    assert whole.at["bootstrap.difference.panderm.medsiglip.low", "ours"] == -row["high"]
    assert whole.at["bootstrap.difference.panderm.medsiglip.high", "ours"] == -row["low"]


def test_a_name_is_set_beside_a_number_as_a_name(whole: pd.DataFrame) -> None:
    row = whole.loc["label_efficiency.first_percent.chexpert.mae"]
    assert row["published_name"] == "never"
    assert row["ours_name"] in {"never", "1", "5", "10", "25", "100"}
    assert pd.isna(row["published"])
    assert pd.isna(row["difference"])


def test_another_panel_is_called_so_and_what_it_lacks_is_not_filled_in(
    world: World, published_file: Path, tmp_path: Path
) -> None:
    small = world.only(["vit_b16", "mae", "clip", "panderm"], ["isic2019", "chexpert"])
    runs = small.runs[small.runs["seed"] < 3].reset_index(drop=True)
    own = own_of(replace(small, runs=runs), tmp_path, synthetic=True)
    table = scorecard(load_published(published_file), own).set_index("figure")
    assert not table["same_panel"].any()
    tau = table.loc["rank_agreement.kendall_tau"]
    assert tau["note"] == (
        "another panel: 4 encoders, 4 of them published; 2 data sets, 2 of them published; "
        "3 seeds, not 5; synthetic data"
    )
    assert pd.notna(tau["ours"])
    absent = table.loc["leaders.auroc.medgemma"]
    assert pd.isna(absent["ours"])
    assert absent["note"] == "not run: this run has no medgemma"
    gone = table.loc["leave_one_dataset_out.spearman.aptos2019"]
    assert gone["note"] == "not run: this run has no aptos2019"
    welch = table.loc["institutional_shift.chexpert.mimic.welch_p"]  # one medical encoder
    assert welch["note"] == "not run: undefined for this run's panel"


def test_floors_are_no_part_of_the_panel(
    world: World, published_file: Path, tmp_path: Path
) -> None:
    floor = world.runs[world.runs["encoder"] == "mae"].assign(encoder="noise")
    runs = pd.concat([world.runs, floor], ignore_index=True)
    noise = {**world.encoders["mae"], "group": "floor", "title": "Noise"}
    own = own_of(replace(world, runs=runs, encoders={**world.encoders, "noise": noise}), tmp_path)
    table = scorecard(load_published(published_file), own).set_index("figure")
    assert table["same_panel"].all()
    assert table.at["grid.runs", "difference"] == 0


def test_another_study_is_compared_by_the_names_of_its_findings(
    world: World, published_file: Path, tmp_path: Path
) -> None:
    findings = {"mean_auroc_change": 0.002, "primary_tests": 6}
    metadata = {"study": "recalibration", "sentence": "A sentence.", "findings": findings}
    write_table(tmp_path / "recalibration.parquet", pd.DataFrame({"a": [1]}), metadata)
    files = [tmp_path / "recalibration.parquet"]
    own = own_figures(world.tables(), world.scoring, files, [], False)
    table = scorecard(load_published(published_file), own).set_index("figure")
    assert table.at["recalibration.mean_auroc_change", "difference"] == pytest.approx(0.001)
    assert table.at["recalibration.primary_tests", "difference"] == 0


def test_the_text_has_the_rows_of_the_table(whole: pd.DataFrame, tmp_path: Path) -> None:
    write_tsv(tmp_path / "r.tsv", whole.reset_index())
    with (tmp_path / "r.tsv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [row["figure"] for row in rows] == whole.index.tolist()
    tau = next(row for row in rows if row["figure"] == "rank_agreement.kendall_tau")
    assert float(tau["published"]) == 0.6
    sweeps = next(row for row in rows if row["figure"] == "depth_sweep.sweeps")
    assert (sweeps["ours"], sweeps["difference"]) == ("", "")


def test_the_published_panel_is_that_of_the_shipped_config(
    published: Config, published_file: Path
) -> None:
    figures = load_published(published_file)
    assert figures.encoders == set(published.encoders)
    assert figures.datasets == set(published.datasets)
    assert figures.n_seeds == len(published.seeds)
    known = yaml.safe_load(published_file.read_text("utf-8"))["figures"]
    own = {"grid", "weights", "leaders", "bootstrap"}
    assert set(known) - own - NOT_OF_TABLES <= set(STUDIES)


def test_a_file_of_something_else_is_reported(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("panel: {encoders: [a]}\n")
    with pytest.raises(UserError, match=r"p\.yaml: .*lacks the key 'figures'"):
        load_published(tmp_path / "p.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        load_published(tmp_path / "none.yaml")
