"""SYNTHETIC material for the report: the published grid with numbers from a seeded generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.model import Config
from crsbench.report.material import MadeStudy, Material
from crsbench.studies.base import write_study
from crsbench.studies.reproduction import load_published, own_figures, scorecard
from worlds.studies import STUDIES, World


def synthetic_material(config: Config, folder: Path, world: World | None = None) -> Material:
    """SYNTHETIC: every table, study and audit of a whole panel, its studies' files in a folder.

    The data sets' titles say that they are synthetic, and the page marks them so.
    """
    world = World.of(config) if world is None else world
    inputs, tables = world.inputs(), world.tables()
    studies = {}
    for name in STUDIES:
        table, figure = folder / f"{name}.parquet", folder / f"{name}.svg"
        write_study(table, figure, name, STUDIES[name](inputs))
        studies[name] = MadeStudy.read(table, figure)
    files = [folder / f"{name}.parquet" for name in STUDIES]
    own = own_figures(tables, world.scoring, files, world.floors, synthetic=True)
    published = load_published(config.home / "config" / "published.yaml")
    tables["reproduction"] = scorecard(published, own)
    tables["confidence_bins"] = synthetic_bins(tables["runs"])
    datasets = {
        name: {**spec, "title": f"{spec['title']} (synthetic)", "reader": "phantom"}
        for name, spec in world.datasets.items()
    }
    return Material(
        tables,
        studies,
        world.encoders,
        datasets,
        world.targets,
        world.scoring,
        audits=[synthetic_audit(name, spec["title"]) for name, spec in datasets.items()],
        provenance={
            "commit": "0" * 40,
            "versions": {"Python": "3.11.0", "crsbench": "0.1.0"},
            "config": "synthetic: true\n",
            "weights": dict.fromkeys(world.encoders, "ab" * 32),
            "base_models": {},
        },
    )


def synthetic_bins(runs: pd.DataFrame) -> pd.DataFrame:
    """SYNTHETIC bins: the greater an encoder's ECE, the further accuracy lies below confidence."""
    full = runs[runs["percent"] == 100]
    cells = full.groupby(["encoder", "dataset", "condition"], as_index=False)["ece"].mean()
    bins = cells.merge(pd.DataFrame({"bin": np.arange(15)}), how="cross")
    bins["confidence"] = (bins["bin"] + 0.5) / 15
    bins["count"] = 1000 + 200 * bins["bin"]
    bins["accuracy"] = (bins["confidence"] * (1 - 2 * bins["ece"])).clip(0, 1)
    return bins.drop(columns="ece")


def synthetic_audit(name: str, title: str) -> dict[str, Any]:
    return {
        **{"dataset": name, "title": title, "images": 1000, "notices": []},
        "rows": {"expected": 1000, "found": 1000, "as_expected": True, "left_out": {}},
        "files": {"damaged": {"count": 0}},
        "groups": {"count": 800, "crossing_parts": {"0": 0}},
        "duplicates": {
            "exact": {"sets": 3},
            "conflicting": {"sets": 1},
            "near": {"pairs": 2},
        },
    }
