"""The grid of runs: cells, conditions, counts, and the name of every file.

A run is encoder × data set × seed × condition × label fraction (protocol, section 3). This is the
only module that knows how many there are and where their files lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crsbench.config.model import Config
from crsbench.core.names import CLEAN


@dataclass(frozen=True, order=True)
class Cell:
    """An encoder on a data set."""

    encoder: str
    dataset: str


@dataclass(frozen=True, order=True)
class Run:
    """One metric row of one seed; `percent` is the label fraction in percent."""

    encoder: str
    dataset: str
    seed: int
    condition: str
    percent: int

    @classmethod
    def named(
        cls,
        *,
        encoder: str,
        dataset: str,
        seed: str,
        percent: str,
        condition: str = "",
        target: str = "",
    ) -> Run:
        """The run of a file name's parts, in which a shift target stands for a condition."""
        return cls(encoder, dataset, int(seed), condition or target, int(percent))


@dataclass(frozen=True)
class Grid:
    """All cells, conditions and runs of a configuration, in the configuration's own order."""

    config: Config

    @property
    def cells(self) -> list[Cell]:
        """The encoder × data set pairs, without those that its entry or the config excludes."""
        return [
            Cell(encoder.name, dataset)
            for encoder in self.config.encoders.values()
            for dataset in self.config.datasets
            if dataset not in encoder.without_datasets
            and (encoder.name, dataset) not in self.config.left_out
        ]

    def batches(self, size: int) -> list[list[Cell]]:
        """The cells in their order, `size` of them at a time."""
        cells = self.cells
        return [cells[start : start + size] for start in range(0, len(cells), size)]

    @property
    def recalibrated(self) -> list[Cell]:
        """The cells that recalibration is studied on; none without the key `recalibration`."""
        settings = self.config.settings.get("recalibration")
        if settings is None:
            return []
        return [
            cell
            for cell in self.cells
            if settings["all_cells"] or cell.encoder in settings["primary"]
        ]

    @property
    def degraded(self) -> list[str]:
        """The perturbed conditions, `{kind}-{severity}` with severities from 1 (mild) up."""
        return self.config.degraded

    def conditions(self, dataset: str) -> list[str]:
        """The data set's conditions: clean, the degraded ones, its shift targets."""
        return [CLEAN, *self.degraded, *self.config.datasets[dataset].shift]

    def runs(self) -> Iterator[Run]:
        for cell in self.cells:
            for seed in self.config.seeds:
                for condition in self.conditions(cell.dataset):
                    for percent in self.config.fractions:
                        yield Run(cell.encoder, cell.dataset, seed, condition, percent)

    @property
    def depth_cells(self) -> list[Cell]:
        """The cells whose encoder is probed by depth."""
        sweep = self.config.settings.get("depth_sweep", {"encoders": [], "datasets": []})
        swept = {(name, dataset) for name in sweep["encoders"] for dataset in sweep["datasets"]}
        return [cell for cell in self.cells if (cell.encoder, cell.dataset) in swept]

    @property
    def adapted_cells(self) -> list[Cell]:
        """The cells whose encoder is adapted."""
        section = self.config.settings.get("adaptation", {"encoders": [], "datasets": []})
        adapted = {
            (name, dataset) for name in section["encoders"] for dataset in section["datasets"]
        }
        return [cell for cell in self.cells if (cell.encoder, cell.dataset) in adapted]

    def adapted_conditions(self, dataset: str, percent: int) -> list[str]:
        """What an adapted encoder is tested on: what the four axes need, and no more.

        Below 100 % of the labels that is the clean test set.
        """
        chosen = self.config.settings["adaptation"]["conditions"]
        known = [CLEAN] if percent < 100 else self.conditions(dataset)
        return [name for name in known if name == CLEAN or chosen == "all" or name in chosen]

    def adapted_runs(self) -> Iterator[Run]:
        section = self.config.settings.get("adaptation")
        for cell in self.adapted_cells:
            for seed in section["seeds"]:
                for percent in sorted(section["fractions"]):
                    for condition in self.adapted_conditions(cell.dataset, percent):
                        yield Run(cell.encoder, cell.dataset, seed, condition, percent)

    def count_rows(self) -> int:
        """Metric rows after aggregation over seeds."""
        fractions = len(self.config.fractions)
        return sum(len(self.conditions(cell.dataset)) * fractions for cell in self.cells)

    def count_runs(self) -> int:
        return self.count_rows() * len(self.config.seeds)
