"""What pre-training is known to have had, in every table of encoders on data sets."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from crsbench.config.overlap import Overlaps, mark, summary
from crsbench.core.files import read_table
from crsbench.studies.base import write_study
from crsbench.studies.registry import Study

SOURCE = {"included": True, "source": "its card"}
ENCODERS = {
    "seen_elsewhere": {"pretraining": {"far": SOURCE}},
    "seen_at_home": {"pretraining": {"home": SOURCE, "far": {"included": False, "source": "b"}}},
    "silent": {"without_datasets": ["drawn"]},
    "random": {"weights": "untrained"},
}
DATASETS = {"home": {"shift": ["far"]}, "other": {}, "drawn": {"reader": "phantom"}}
OVERLAPS = Overlaps(ENCODERS, DATASETS, {"far": {}})
TITLES = {"home": "Home", "other": "Other", "far": "Far", "drawn": "Drawn"}


def rows(*cells: tuple[str, ...], columns: str = "encoder dataset condition") -> pd.DataFrame:
    return pd.DataFrame(cells, columns=columns.split()[: len(cells[0])])


def test_a_row_is_about_the_images_that_its_condition_names() -> None:
    found = rows(
        ("seen_elsewhere", "home", "clean"),
        ("seen_elsewhere", "home", "jpeg-1"),
        ("seen_elsewhere", "home", "far"),
        ("seen_at_home", "home", "clean"),
        ("seen_at_home", "home", "far"),
        ("silent", "other", "clean"),
        ("silent", "drawn", "clean"),  # it has no cell there
        ("seen_at_home", "drawn", "clean"),
        ("random", "home", "far"),
    )
    assert OVERLAPS.add_to(found)["overlap"].tolist() == [
        *("unknown", "unknown", "yes", "yes", "no"),
        *("unknown", "unknown", "no", "no"),
    ]


def test_a_row_of_a_cell_is_about_its_shift_targets_too_and_the_aggregate_about_all() -> None:
    found = rows(
        ("seen_elsewhere", "home"),
        ("seen_elsewhere", "other"),
        ("seen_elsewhere", "aggregate"),
        ("silent", "aggregate"),
        ("random", "aggregate"),
        ("of the frozen panel", "home"),
    )
    wanted = ["yes", "unknown", "yes", "unknown", "no", "unknown"]
    assert OVERLAPS.add_to(found)["overlap"].tolist() == wanted
    by_encoder = rows(*[(cell[0],) for cell in found.itertuples(index=False)][2:5])
    assert [summary(one.values()) for one in OVERLAPS.of_rows(by_encoder)] == wanted[2:5]


@pytest.mark.parametrize("columns", ["encoder", "dataset", "encoder_a dataset"])
def test_a_table_that_is_not_of_cells_stays_as_it_is(columns: str) -> None:
    frame = pd.DataFrame(columns=columns.split())
    assert OVERLAPS.add_to(frame) is frame


def test_a_table_without_rows_gets_the_column() -> None:
    assert list(OVERLAPS.add_to(pd.DataFrame(columns=["encoder", "dataset"])))[-1] == "overlap"


def test_the_mark_names_the_images_and_who_says_so() -> None:
    seen = mark(OVERLAPS.of("seen_elsewhere", "home"), TITLES)
    assert seen == {"label": "seen", "meaning": "Pre-training included Far (its card)."}
    unknown = mark(OVERLAPS.of("silent", "home"), TITLES)
    assert unknown is not None
    assert unknown["label"] == "seen?"
    assert unknown["meaning"] == "Whether pre-training included Home, Far is not known."
    assert mark(OVERLAPS.of("random"), TITLES) is None
    assert mark({}, TITLES) is None


def test_a_studys_table_is_written_with_it(tmp_path: Path) -> None:
    study = Study(rows(("seen_at_home", "home")), "A sentence.")
    write_study(tmp_path / "s.parquet", tmp_path / "s.svg", "s", study, OVERLAPS)
    assert read_table(tmp_path / "s.parquet")[0]["overlap"].tolist() == ["yes"]


def test_every_fact_of_the_registry_is_sourced_and_known_ones_are_there(home: Path) -> None:
    registry = yaml.safe_load((home / "config/encoders.yaml").read_text("utf-8"))
    facts = {
        name: sorted(d for d, known in spec.get("pretraining", {}).items() if known["included"])
        for name, spec in registry.items()
    }
    mimic = {"medgemma", "biovil", "biovil_t", "chexzero"}
    mimic |= {name for name in registry if name.startswith("medsiglip")}
    assert {name: data for name, data in facts.items() if data} == {
        **{name: ["mimic"] for name in mimic},
        "rad_dino": ["chexpert", "mimic", "nih", "padchest"],
        "retfound": ["eyepacs"],
        "retfound_notebook": ["eyepacs"],
    }
