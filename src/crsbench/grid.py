"""The grid of runs: cells, conditions, counts, and the name of every file.

A run is encoder × data set × seed × condition × label fraction (protocol, section 3). This is the
only module that knows how many there are and where their files lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crsbench.config import CLEAN, Config


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


RECALIBRATED_PARTS = ("recalibrated", "reliability", "cases")
"""The tables of a recalibrated cell, see `crsbench.recalibrated.RecalibratedCell`."""


@dataclass(frozen=True)
class Layout:
    """The name of every file below `{results}`.

    Each attribute is a pattern in braces: the workflow uses it as it stands for its wildcards,
    `at` fills it in for one file.
    """

    results: Path

    @property
    def phantoms(self) -> str:
        return f"{self.results}/data/{{dataset}}/phantoms/table.csv"

    @property
    def manifest(self) -> str:
        return f"{self.results}/data/{{dataset}}/manifest.parquet"

    @property
    def images(self) -> str:
        return f"{self.results}/data/{{dataset}}/images.parquet"

    @property
    def audit(self) -> str:
        return f"{self.results}/data/{{dataset}}/audit.json"

    @property
    def test(self) -> str:
        return f"{self.results}/data/{{dataset}}/test.parquet"

    @property
    def split(self) -> str:
        return f"{self.results}/data/{{dataset}}/splits/seed{{seed}}.parquet"

    @property
    def features(self) -> str:
        return f"{self.results}/features/{{encoder}}/{{dataset}}/{{condition}}.arrow"

    @property
    def weights(self) -> str:
        """The record of the weights files that an encoder was loaded from."""
        return f"{self.results}/weights/{{encoder}}.json"

    @property
    def digests(self) -> str:
        """Digests of weights files, kept so that they are computed once."""
        return f"{self.results}/weights/.digests.cache.json"

    @property
    def probe(self) -> str:
        return f"{self.results}/probes/{{encoder}}/{{dataset}}/seed{{seed}}/frac{{percent}}.npz"

    @property
    def run(self) -> str:
        return (
            f"{self.results}/runs/{{encoder}}/{{dataset}}/seed{{seed}}/{{condition}}"
            "/frac{percent}.json"
        )

    @property
    def predictions(self) -> str:
        return f"{self.results}/predictions/{{encoder}}/{{dataset}}/seed{{seed}}.parquet"

    @property
    def recalibrated(self) -> str:
        """A cell's tables of recalibration."""
        return f"{self.results}/recalibration/{{encoder}}/{{dataset}}/{{part}}.parquet"

    @property
    def own_model(self) -> str:
        """What is made of the predictions of a user's own model."""
        return f"{self.results}/own_model/{{file}}"

    @property
    def control_runs(self) -> str:
        return f"{self.results}/control_probes/{{encoder}}/{{dataset}}.json"

    @property
    def depth_features(self) -> str:
        """Clean features at a share of the depth, in percent."""
        return f"{self.results}/depth/{{encoder}}/{{dataset}}/depth{{depth}}.arrow"

    @property
    def depth_runs(self) -> str:
        return f"{self.results}/depth/{{encoder}}/{{dataset}}/runs.parquet"

    @property
    def adapted(self) -> str:
        """The folder of one training."""
        return f"{self.results}/adaptation/{{encoder}}/{{dataset}}/seed{{seed}}/frac{{percent}}"

    @property
    def adapter(self) -> str:
        """The folder of its adapter, in peft's format."""
        return f"{self.adapted}/adapter"

    @property
    def adapted_head(self) -> str:
        return f"{self.adapted}/head.npz"

    @property
    def training(self) -> str:
        return f"{self.adapted}/training.json"

    @property
    def adapted_runs(self) -> str:
        return f"{self.adapted}/runs.parquet"

    @property
    def table(self) -> str:
        return f"{self.results}/tables/{{table}}.parquet"

    @property
    def scorecard(self) -> str:
        """The reproduction scorecard as text, beside the table of the same name."""
        return f"{self.results}/tables/reproduction.tsv"

    @property
    def study(self) -> str:
        return f"{self.results}/studies/{{study}}.parquet"

    @property
    def study_figure(self) -> str:
        return f"{self.results}/studies/{{study}}.svg"

    @property
    def report(self) -> str:
        return f"{self.results}/report/index.html"

    @property
    def paper(self) -> str:
        """Figures and tables for a paper."""
        return f"{self.results}/paper/{{file}}"

    def log(self, rule: str, job: str = "") -> str:
        """A job's log; `job` is a pattern with the rule's wildcards."""
        return f"{self.results}/logs/{rule}{job and '/'}{job}.log"

    @staticmethod
    def at(pattern: str, **names: object) -> str:
        """Fill in a pattern; a label fraction is written with three digits."""
        if "percent" in names:
            names["percent"] = f"{int(str(names['percent'])):03d}"
        return pattern.format(**names)

    def run_file(self, run: Run) -> str:
        return self.at(
            self.run,
            encoder=run.encoder,
            dataset=run.dataset,
            seed=run.seed,
            condition=run.condition,
            percent=run.percent,
        )

    def predictions_file(self, cell: Cell, seed: int) -> str:
        return self.at(self.predictions, encoder=cell.encoder, dataset=cell.dataset, seed=seed)

    def control_file(self, cell: Cell) -> str:
        return self.at(self.control_runs, encoder=cell.encoder, dataset=cell.dataset)
