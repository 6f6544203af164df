"""A working folder as a user has one: own encoders, own data sets, a config."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image

from worlds.workflow import demo_without_sections

Snakemake = Callable[..., subprocess.CompletedProcess[str]]


ENCODERS = """
import torch

def means():
    return lambda images: images.mean(dim=(2, 3))

def spread():
    return lambda images: torch.cat([images.std(dim=(2, 3)), images.mean(dim=(2, 3))], dim=1)

def broken():
    return lambda images: images.mean(dim=(2, 3)) / 0 * 0
"""


PREPROCESSING = {
    "resize": "squash",
    "size": 16,
    "interpolation": "bicubic",
    "mean": [0, 0, 0],
    "std": [1, 1, 1],
}


def own_encoder(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "title": name,
        "group": "general",
        "licence": "MIT",
        "library": "python",
        "model": f"own_encoders:{name}",
        "preprocessing": dict(PREPROCESSING),
    } | changes


@dataclass
class Project:
    """A working folder with registries, a config and a data set of tinted noise images."""

    folder: Path
    snakemake: Snakemake

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def run(self, *arguments: str, cores: int = 2) -> subprocess.CompletedProcess[str]:
        return self.snakemake(
            *("--cores", str(cores), "--configfile", "config.yaml"),
            *arguments,
            cwd=self.folder,
            PYTHONPATH=str(self.folder),
        )

    def edit(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        file = self.folder / f"{name}.yaml"
        content = yaml.safe_load(file.read_text("utf-8"))
        change(content)
        file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")

    def tables(self) -> dict[str, bytes]:
        """The bytes of all tables, studies with their figures, and kept predictions."""
        return {
            str(path.relative_to(self.results)): path.read_bytes()
            for folder in ("tables", "studies", "predictions")
            for path in (self.results / folder).rglob("*.*")
        }

    def copy(self, folder: Path) -> Project:
        shutil.copytree(self.folder, folder, copy_function=shutil.copy2)
        copy = Project(folder, self.snakemake)
        copy.edit("config", copy.point_to_own_registries)
        return copy

    def point_to_own_registries(self, config: dict[str, Any]) -> None:
        for name in ("encoder", "dataset"):
            config[f"{name}_registry"] = str(self.folder / f"{name}s.yaml")


def make_project(folder: Path, home: Path, snakemake: Snakemake) -> Project:
    images = folder / "data" / "tints"
    images.mkdir(parents=True)
    rows = []
    for index in range(90):
        generator = np.random.default_rng(index)
        label = index % 3
        pixels = generator.normal(120, 40, (20, 26, 3))
        pixels[..., label] += 12
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(images / f"{index}.png")
        rows.append((f"t{index:03d}", f"{index}.png", "rgb"[label], f"p{index // 2}"))
    pd.DataFrame(rows, columns=["id", "path", "label", "patient"]).to_csv(
        images / "table.csv", index=False
    )
    project = Project(folder, snakemake)
    (folder / "own_encoders.py").write_text(ENCODERS)
    registry = {name: own_encoder(name) for name in ("means", "spread", "broken")}
    registry["floor"] = own_encoder("means", group="floor", title="A floor")
    shipped = yaml.safe_load((home / "config/datasets.yaml").read_text("utf-8"))
    datasets = {
        "tints": {
            "title": "Tints",
            "licence": "CC0-1.0",
            "task": "multiclass",
            "classes": ["r", "g", "b"],
            "positive_classes": {"red or green": ["r", "g"]},
            "reader": "table",
            "root": "tints",
            "table": "table.csv",
            "columns": {"id": "id", "path": "path", "label": "label", "group": "patient"},
        }
    }
    for name, site, count in (("chest", "home", 70), ("foreign", "foreign", 30)):
        entry = dict(shipped[f"phantom_{'foreign_' if site == 'foreign' else ''}chest"])
        entry["phantom"] = {"kind": "chest", "site": site, "count": count, "size": 32}
        entry.pop("shift", None)
        datasets[name] = entry
    datasets["chest"]["shift"] = ["foreign"]
    config = demo_without_sections() | {
        "results": "results",
        "data_root": "data",
        "encoders": ["means", "spread", "floor"],
        "bootstrap": {"replicates": 1000, "case_replicates": 100},
        "datasets": ["tints", "chest"],
        "seeds": [0, 1],
        "fractions": [10, 100],
        "perturbations": {"jpeg": [50, 10], "rician_noise": [0.2]},
    }
    config["image"]["short_side"] = 20
    config["extraction"]["together"] = False
    config["studies"]["baseline_encoder"] = "means"
    config["recalibration"] = {"primary": ["means"], "all_cells": True, "cases": [8]}
    config["studies"]["subgroups"] |= {"columns": ["sex", "view"], "min_images": 6, "min_cases": 2}
    config["studies"]["replicates"] = 100
    del config["control_probes"]  # they have a test of their own
    project.point_to_own_registries(config)
    for name, content in (("encoders", registry), ("datasets", datasets), ("config", config)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return project


def refused(ended: subprocess.CompletedProcess[str], sentence: str) -> None:
    """The run failed, said why in one sentence, and showed no Python traceback."""
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert re.search(sentence, output), output
    assert "Traceback (most recent call last)" not in output, output
