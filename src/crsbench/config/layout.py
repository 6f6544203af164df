"""The name of every file below `{results}`: the only module that knows where files lie."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.grid import Cell, Run

RECALIBRATED_PARTS = ("recalibrated", "reliability", "cases")
"""The tables of a recalibrated cell, see `crsbench.calibration.cells.RecalibratedCell`."""


class Layout:
    """The name of every file below `{results}`.

    Each attribute is a pattern in braces: the workflow uses it as it stands for its wildcards,
    `at` fills it in for one file.
    """

    def __init__(self, results: Path) -> None:
        self.results = results

        data = f"{results}/data/{{dataset}}"
        self.phantoms = f"{data}/phantoms/table.csv"
        self.manifest = f"{data}/manifest.parquet"
        self.images = f"{data}/images.parquet"
        self.audit = f"{data}/audit.json"
        self.audit_page = f"{data}/audit.md"
        self.test = f"{data}/test.parquet"
        self.split = f"{data}/splits/seed{{seed}}.parquet"

        # The files that an encoder was loaded from, and digests that are computed once.
        self.weights = f"{results}/weights/{{encoder}}.json"
        self.digests = f"{results}/weights/.digests.cache.json"

        cell = "{encoder}/{dataset}"
        seed, percent = f"{cell}/seed{{seed}}", "frac{percent}"
        self.features = f"{results}/features/{cell}/{{condition}}.arrow"
        self.probe = f"{results}/probes/{seed}/{percent}.npz"
        self.run = f"{results}/runs/{seed}/{{condition}}/{percent}.json"
        self.predictions = f"{results}/predictions/{seed}.parquet"
        self.resamples = f"{results}/resamples/{cell}.npz"
        self.recalibrated = f"{results}/recalibration/{cell}/{{part}}.parquet"
        self.control_runs = f"{results}/control_probes/{cell}.json"
        self.depth_features = f"{results}/depth/{cell}/depth{{depth}}.arrow"
        self.depth_runs = f"{results}/depth/{cell}/runs.parquet"

        # The folder of one training, the folder of its adapter in peft's format, and the rest.
        self.adapted = f"{results}/adaptation/{seed}/{percent}"
        self.adapter = f"{self.adapted}/adapter"
        self.adapted_head = f"{self.adapted}/head.npz"
        self.training = f"{self.adapted}/training.json"
        self.adapted_runs = f"{self.adapted}/runs.parquet"

        self.table = f"{results}/tables/{{table}}.parquet"
        self.scorecard = f"{results}/tables/reproduction.tsv"
        self.study = f"{results}/studies/{{study}}.parquet"
        self.study_figure = f"{results}/studies/{{study}}.svg"
        self.external_predictions = f"{results}/external_predictions/{{file}}"
        self.report = f"{results}/report/index.html"
        self.paper = f"{results}/paper/{{file}}"

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
        return self.at(self.run, **vars(run))

    def predictions_file(self, cell: Cell, seed: int) -> str:
        return self.at(self.predictions, **vars(cell), seed=seed)

    def control_file(self, cell: Cell) -> str:
        return self.at(self.control_runs, **vars(cell))
