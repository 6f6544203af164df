"""Shared by the tests: small data sets in the layout of the `table` reader, and the workflow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from crsbench.config.load import load_config
from crsbench.config.model import Config, DatasetEntry
from worlds.workflow import (
    HOME,
    demo_without_sections,
    run_snakemake,
)

# No test may depend on a model hub: what is not there must be reported, not fetched.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HOME / "tests" / "workflow"):
            item.add_marker(pytest.mark.workflow)


@pytest.fixture(scope="session")
def home() -> Path:
    """The workflow's own folder."""
    return HOME


@pytest.fixture(scope="session")
def settings() -> Callable[[str], dict[str, Any]]:
    """A shipped config file by its name, as a fresh mapping."""
    return lambda name: yaml.safe_load((HOME / "config" / f"{name}.yaml").read_text("utf-8"))


@pytest.fixture(scope="session")
def plain_demo() -> Callable[[], dict[str, Any]]:
    """The demo's config without the sections that name encoders, for registries of one's own."""
    return demo_without_sections


@pytest.fixture(scope="session")
def published(settings: Callable[[str], dict[str, Any]]) -> Config:
    return load_config(settings("config"), HOME)


@pytest.fixture(scope="session")
def entry_of(home: Path) -> Callable[..., DatasetEntry]:
    """A shipped registry entry, with changes; None takes a key away."""
    registry = yaml.safe_load((home / "config" / "datasets.yaml").read_text("utf-8"))

    def make(name: str, **changes: Any) -> DatasetEntry:
        spec = {k: v for k, v in (registry[name] | changes).items() if v is not None}
        return DatasetEntry(name, spec["title"], spec["task"], tuple(spec["classes"]), (), spec)

    return make


@pytest.fixture
def table_entry() -> Callable[..., DatasetEntry]:
    """A registry entry of the table reader, with changes."""

    def make(**changes: Any) -> DatasetEntry:
        spec: dict[str, Any] = {
            "title": "Small set",
            "licence": "CC0-1.0",
            "task": "multiclass",
            "classes": ["a", "b"],
            "reader": "table",
            "root": "small",
            "table": "table.csv",
            "columns": {"id": "id", "path": "path", "label": "label"},
        }
        spec |= changes
        return DatasetEntry("small", "Small set", spec["task"], tuple(spec["classes"]), (), spec)

    return make


def write_image_set(folder: Path, rows: Sequence[dict[str, Any]], size: int = 24) -> Path:
    """Write a table and a noise image for each of its rows; equal `content` gives equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows):
        random = np.random.default_rng(row.pop("content", number))
        pixels = random.integers(0, 256, (size, size + 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / row["path"])
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


@pytest.fixture(scope="session")
def image_set() -> Callable[..., Path]:
    return write_image_set


@pytest.fixture(scope="session")
def snakemake() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_snakemake
