"""What a job on a cluster asks for, from the sizes that the config states.

The figures are generous first guesses, stated here in one place; a job that ends for want of memory
or time is submitted again with twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from crsbench.config.grid import Cell, Grid
from crsbench.config.model import Config

ASSUMED_IMAGES = 50_000
"""The size of a data set whose registry entry states none."""

ASSUMED_WIDTH = 2048
"""The width of features; the widest of the published panel."""

SECONDS_PER_SCAN = 0.1
"""To read and decode one image of a data set once, from a slow file system."""

SECONDS_PER_VIEW = {"cuda": 0.03, "cpu": 1.5}
"""To degrade, preprocess and embed one image under one condition with the largest encoders."""


@dataclass(frozen=True)
class Needs:
    """mem_mb: main memory in MB; runtime: wall time in minutes."""

    mem_mb: int
    runtime: int

    def at(self, attempt: int) -> Needs:
        """Twice as much at every further attempt; the first is 1."""
        factor = 2 ** (attempt - 1)
        return Needs(self.mem_mb * factor, self.runtime * factor)


def count_images(config: Config, dataset: str) -> int:
    """How many images the registry entry of a data set says it has."""
    spec = config.dataset(dataset).spec
    stated = spec.get("expected_images", spec.get("phantom", {}).get("count", ASSUMED_IMAGES))
    return sum(stated.values()) if isinstance(stated, Mapping) else stated


def manifest_needs(config: Config, dataset: str) -> Needs:
    """The scan of all images; each of its eight processes may hold the largest image allowed."""
    images = count_images(config, dataset)
    decoded = 6 * config.settings["image"]["max_pixels"] / 1e6  # RGB, and a copy of it
    return Needs(4000 + math.ceil(decoded), _minutes(images * SECONDS_PER_SCAN))


def extraction_needs(config: Config, dataset: str) -> Needs:
    """Every image once and, of a panel data set, every test image once more a condition.

    A job for several encoders is as long as theirs one after another, and holds all their weights.
    """
    images, settings = count_images(config, dataset), config.settings["extraction"]
    views = images
    if dataset in config.datasets:
        views += images * config.settings["splits"]["test"] * len(Grid(config).degraded)
    encoders = max(1, len(config.encoders_together))
    seconds = encoders * views * SECONDS_PER_VIEW[settings["device"]]
    megabytes = 8000 + 1000 * settings["workers"] + 2000 * (encoders - 1)
    return Needs(megabytes, _minutes(seconds))


def probes_needs(config: Config, dataset: str) -> Needs:
    """One seed's probes: six times the features, and the time after which each fit is ended."""
    features = count_images(config, dataset) * ASSUMED_WIDTH * 4 / 1e6
    seconds = len(config.fractions) * config.settings["probe"]["time_cap_seconds"]
    return Needs(2000 + math.ceil(6 * features), _minutes(seconds))


def control_needs(config: Config, cells: Sequence[Cell]) -> Needs:
    """The control probes of some cells, one after another, each seed and fraction as a probe's."""
    fits = len(config.seeds) * len(config.control_probes["fractions"]) / len(config.fractions)
    each = [probes_needs(config, cell.dataset) for cell in cells]
    minutes = sum(needs.runtime for needs in each) * fits
    return Needs(max(needs.mem_mb for needs in each), math.ceil(minutes))


def depth_needs(config: Config, dataset: str) -> Needs:
    """The full-label probes of every seed and depth, one after the other."""
    fits = len(config.seeds) * len(config.settings["depth_sweep"]["depths"])
    seconds = fits * config.settings["probe"]["time_cap_seconds"]
    return Needs(probes_needs(config, dataset).mem_mb, _minutes(seconds))


def adaptation_needs(config: Config, dataset: str) -> Needs:
    """All epochs of one training; forward and backward are three times a forward pass."""
    section, settings = config.settings["adaptation"], config.settings["extraction"]
    images = count_images(config, dataset) * (1 - config.settings["splits"]["test"])
    seconds = 3 * section["epochs"] * images * SECONDS_PER_VIEW[settings["device"]]
    return Needs(12000 + 1000 * settings["workers"], _minutes(seconds))


NEEDS: Mapping[str, Callable[[Config, str], Needs]] = {
    "manifest": manifest_needs,
    "extraction": extraction_needs,
    "probes": probes_needs,
    "depth": depth_needs,
    "adaptation": adaptation_needs,
}


def _minutes(seconds: float) -> int:
    """With a quarter of an hour for the start, the libraries and slow disks."""
    return 15 + math.ceil(seconds / 60)
