"""The name of every file below `{results}`: the only module that knows where files lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from crsbench.config.grid import Cell, Run

RECALIBRATED_PARTS = ("recalibrated", "reliability", "cases")
"""The tables of a recalibrated cell, see `crsbench.calibration.cells.RecalibratedCell`."""


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
    def audit_page(self) -> str:
        return f"{self.results}/data/{{dataset}}/audit.md"

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
    def resamples(self) -> str:
        """What resamples of the test cases make of a cell's runs."""
        return f"{self.results}/resamples/{{encoder}}/{{dataset}}.npz"

    @property
    def recalibrated(self) -> str:
        """A cell's tables of recalibration."""
        return f"{self.results}/recalibration/{{encoder}}/{{dataset}}/{{part}}.parquet"

    @property
    def external_predictions(self) -> str:
        """What is made of the predictions of a user's own model."""
        return f"{self.results}/external_predictions/{{file}}"

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
