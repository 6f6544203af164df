"""Shared by the tests: small data sets in the layout of the `table` reader, and the workflow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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

# No test may depend on a model hub: what is not at hand locally must be told, not fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

HOME = Path(__file__).resolve().parents[1]

NAME_ENCODERS = ("recalibration", "depth_sweep", "adaptation")
"""The optional sections of a config that name encoders and data sets, which must be known.

A panel of the shipped registries' names needs no section dropped, one of other registries does.
"""


def demo_without_sections() -> dict[str, Any]:
    content = yaml.safe_load((HOME / "config/demo.yaml").read_text("utf-8"))
    return {key: value for key, value in content.items() if key not in NAME_ENCODERS}


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


def rules_of_workflow() -> tuple[dict[str, str], set[str]]:
    """The text of every rule by its name, and the names of those that are local."""
    rules: dict[str, str] = {}
    local: set[str] = set()
    for file in (HOME / "Snakefile", *sorted((HOME / "workflow/rules").glob("*.smk"))):
        text = file.read_text("utf-8")
        for block in re.findall(r"^localrules:\n((?:    \w+,\n)+)", text, re.MULTILINE):
            local |= set(re.findall(r"\w+", block))
        rules |= dict(re.findall(r"^rule (\w+):\n((?:    .*\n|\n)+)", text, re.MULTILINE))
    return rules, local


def snakemake_command() -> list[str]:
    """The command line of the workflow with its own profile, from any working folder."""
    profile = ["--workflow-profile", str(HOME / "profiles" / "default")]
    return [sys.executable, "-m", "snakemake", "--snakefile", str(HOME / "Snakefile"), *profile]


def run_snakemake(
    *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the workflow as a user does, in a working folder of its own."""
    return subprocess.run(
        [*snakemake_command(), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="session")
def snakemake() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_snakemake
