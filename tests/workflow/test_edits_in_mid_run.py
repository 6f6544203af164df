"""The config and the registries are edited while a run goes on: its jobs keep what was planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crsbench.features.store import read_metadata
from worlds.small_panel import DATASET, ENCODERS, SmallPanel, edit_in_mid_run, make

TARGETS = ("--", "results/tables/crs.parquet", "predictions")


def small(folder: Path) -> SmallPanel:
    panel = make(folder)
    panel.edit("config", lambda config: config.update(seeds=[0]))
    return panel


def planned(panel: SmallPanel) -> dict[str, int]:
    output = panel.finish("-n", *TARGETS)
    jobs = re.findall(r"^([a-z_]+) +(\d+)$", output, re.MULTILINE)
    return {name: int(count) for name, count in jobs if name != "total"}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> SmallPanel:
    panel = small(tmp_path_factory.mktemp("planned") / "untouched")
    panel.finish(*TARGETS)
    return panel


def test_a_run_makes_what_it_planned_though_its_files_are_edited(
    untouched: SmallPanel, tmp_path: Path
) -> None:
    panel = small(tmp_path / "edited")
    before = {name: (panel.folder / f"{name}.yaml").read_bytes() for name in ("config", "encoders")}
    edit_in_mid_run(panel, *TARGETS)
    assert panel.made() == untouched.made()
    for encoder in ENCODERS:
        file = panel.results / "features" / encoder / DATASET / "jpeg-1.arrow"
        assert read_metadata(file)["made_by"]["perturbations"]["jpeg"] == [10]

    # What the edited files ask for is planned: all features, and what is made of them.
    jobs = planned(panel)
    assert jobs["features"] == len(ENCODERS)
    assert jobs["run"] == len(ENCODERS) * 2 * 3
    assert "manifest" not in jobs
    for name, content in before.items():
        (panel.folder / f"{name}.yaml").write_bytes(content)
    assert planned(panel) == {}
