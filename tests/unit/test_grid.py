"""The grid has the published shape, and every file its documented name."""

from collections import Counter
from pathlib import Path

import pytest

from crsbench.config.grid import Grid, Run
from crsbench.config.layout import Layout
from crsbench.config.model import Config


@pytest.fixture(scope="module")
def grid(published: Config) -> Grid:
    return Grid(published)


def test_the_published_panel_has_43_cells_3515_rows_17575_runs(grid: Grid) -> None:
    assert len(grid.cells) == 43
    assert grid.count_rows() == 3515
    assert grid.count_runs() == 17575


def test_the_runs_are_as_many_as_counted_and_all_different(grid: Grid) -> None:
    runs = list(grid.runs())
    assert len(set(runs)) == len(runs) == 17575
    rows = {(run.encoder, run.dataset, run.condition, run.percent) for run in runs}
    assert len(rows) == 3515


def test_biovil_and_chexzero_have_no_aptos_cell_and_nobody_else_lacks_one(grid: Grid) -> None:
    cells = Counter(cell.dataset for cell in grid.cells)
    assert cells == {"isic2019": 15, "aptos2019": 13, "chexpert": 15}
    assert {c.encoder for c in grid.cells if c.dataset == "isic2019"} - {
        c.encoder for c in grid.cells if c.dataset == "aptos2019"
    } == {"biovil", "chexzero"}


def test_only_chexpert_has_the_condition_mimic(grid: Grid) -> None:
    assert len(grid.conditions("isic2019")) == len(grid.conditions("aptos2019")) == 16
    assert set(grid.conditions("chexpert")) - set(grid.conditions("isic2019")) == {"mimic"}
    assert len(grid.conditions("chexpert")) == 17


def test_severity_is_part_of_the_condition(grid: Grid) -> None:
    assert grid.degraded[:4] == ["gaussian_blur-1", "gaussian_blur-2", "gaussian_blur-3", "jpeg-1"]
    assert len(grid.degraded) == 15


def test_a_run_has_its_documented_path() -> None:
    layout = Layout(Path("results/paper"))
    run = Run("medsiglip", "isic2019", 0, "jpeg-3", 10)
    assert layout.run_file(run) == "results/paper/runs/medsiglip/isic2019/seed0/jpeg-3/frac010.json"
    parts = {"encoder": "medsiglip", "dataset": "isic2019", "seed": "0", "percent": "010"}
    assert Run.named(**parts, condition="jpeg-3") == run
    assert Run.named(**parts, target="mimic").condition == "mimic"


def test_a_filled_in_pattern_writes_the_fraction_with_three_digits() -> None:
    layout = Layout(Path("r"))
    assert layout.at(layout.probe, encoder="e", dataset="d", seed=4, percent=5) == (
        "r/probes/e/d/seed4/frac005.npz"
    )
