"""What a run would cost, before anything runs: jobs, images, forwards, hours and disk.

Counts come from the grid and the registries (from manifests, where they are there already); hours
from `config/throughput.yaml`, which says of each rate whether it is measured or assumed. Work that
takes seconds in all (tables, studies of tables, the report) is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from crsbench.config.grid import Cell, Grid
from crsbench.config.layout import Layout
from crsbench.config.model import Config
from crsbench.config.schema import read_closed
from crsbench.operations.resources import count_images

RATES_FILE = "config/throughput.yaml"

DEFAULT = "default"
"""The entry of the rates for an encoder that has none of its own."""


@dataclass(frozen=True)
class Line:
    """What one rule's jobs come to; `images` are opened, `forwards` pass an encoder."""

    rule: str
    jobs: int
    images: int = 0
    forwards: int = 0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    gigabytes: float = 0.0


class Plan:
    """A configuration with the sizes of its data sets and the rates to count with.

    Raises UserError when the rates' file is missing or has an unknown or missing key.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.grid = Grid(config)
        self.rates = read_closed(config.home / RATES_FILE, "throughput")

    def images(self, dataset: str) -> int:
        """From the manifest where it is there, else what the registry entry says."""
        layout = Layout(self.config.results)
        file = Path(layout.at(layout.manifest, dataset=dataset))
        return pq.read_metadata(file).num_rows if file.is_file() else self.stated(dataset)

    def stated(self, dataset: str) -> int:
        return count_images(self.config, dataset)

    def test_images(self, dataset: str) -> int:
        return round(self.images(dataset) * self.config.settings["splits"]["test"])

    def encoder(self, name: str) -> Mapping[str, float]:
        """Its `gigaflops` a forward and the `width` of its feature."""
        return self.rates["encoders"].get(name, self.rates["encoders"][DEFAULT])

    def views(self, dataset: str) -> int:
        """The forwards of one encoder over a panel data set: clean images, degraded test images."""
        return self.images(dataset) + self.test_images(dataset) * len(self.grid.degraded)

    def data_hours(self, dataset: str, degraded: bool) -> float:
        """CPU hours to decode and degrade a data set's images once."""
        rates, perturbations = self.rates["images"], self.config.perturbations
        scale = (self.config.settings["image"]["short_side"] / 512) ** 2
        milliseconds = self.images(dataset) * (rates["decode"] + scale * rates["canonical"])
        if degraded:
            views = sum(rates[kind] * len(levels) for kind, levels in perturbations.items())
            milliseconds += self.test_images(dataset) * scale * views
        return milliseconds / 3.6e6

    def forward_hours(
        self, encoder: str, views: int, precision: str | None = None
    ) -> dict[str, float]:
        """CPU and GPU hours of preprocessing and forwards, in the extraction's precision or one."""
        settings, rates = self.config.settings["extraction"], self.rates
        size = self.config.encoders[encoder].spec.get("preprocessing", {}).get("size", 0)
        milliseconds = rates["images"]["preprocess"] * (0.5 + 0.5 * (size / 224) ** 2)
        cpu = views * milliseconds / 3.6e6
        speed = rates["teraflops"][settings["device"]][precision or settings["precision"]]
        forward = views * self.encoder(encoder)["gigaflops"] / (speed * 3.6e6)
        on_gpu = settings["device"] == "cuda"
        return {"cpu_hours": cpu + (0 if on_gpu else forward), "gpu_hours": forward * on_gpu}


def planned(config: Config) -> pd.DataFrame:
    """A row for each rule with jobs: the columns of `Line`. Raises UserError as `Plan` does."""
    plan = Plan(config)
    lines = [line for part in PARTS for line in part(plan) if line.jobs]
    return pd.DataFrame([astuple(line) for line in lines], columns=[f.name for f in fields(Line)])


def formatted(config: Config) -> str:
    """The plan as text, with its sum and with what was assumed. Raises UserError as `Plan` does."""
    table = planned(config)
    total = {"rule": "total", **table.drop(columns="rule").sum().to_dict()}
    table = pd.concat([table, pd.DataFrame([total])], ignore_index=True)
    numbers = dict.fromkeys(("jobs", "images", "forwards"), "{:,.0f}".format)
    numbers |= dict.fromkeys(("cpu_hours", "gpu_hours", "gigabytes"), "{:,.2f}".format)
    return "\n".join(
        [table.to_string(index=False, formatters=numbers), "", *_assumed(Plan(config))]
    )


def _assumed(plan: Plan) -> list[str]:
    """One sentence for each thing that the plan does not know."""
    config = plan.config
    unsized = [
        name
        for name in [*config.datasets, *config.targets]
        if not {"expected_images", "phantom"} & set(config.dataset(name).spec)
        and plan.images(name) == plan.stated(name)
    ]
    unrated = [
        name
        for name, entry in config.encoders.items()
        if name not in plan.rates["encoders"] and "embeddings" not in entry.spec
    ]
    sentences = [f"Hours are from {RATES_FILE}: {plan.rates['source']}."]
    if config.settings.get("adaptation", {"in_report": True})["in_report"] is False:
        sentences.append(
            "adapt and adapted_runs are of `snakemake adaptation`; `all` leaves them out."
        )
    if unsized:
        count = plan.stated(unsized[0])
        sentences.append(f"Of unknown size, taken as {count:,} images: {', '.join(unsized)}.")
    if unrated:
        sentences.append(f"Of unknown speed, taken as '{DEFAULT}': {', '.join(unrated)}.")
    return sentences


def _data(plan: Plan) -> list[Line]:
    config, names = plan.config, [*plan.config.datasets, *plan.config.targets]
    images = sum(plan.images(name) for name in names)
    scan = images * plan.rates["images"]["scan"] / 3.6e6
    return [
        Line("phantoms", sum(config.dataset(name).synthetic for name in names)),
        Line("manifest", len(names), images, cpu_hours=scan),
        Line("test_set", len(config.datasets)),
        Line("split", len(config.datasets) * len(config.seeds)),
        Line("audit", len(names)),
    ]


def _features(plan: Plan) -> list[Line]:
    config, together = plan.config, plan.config.encoders_together
    cells = [cell for cell in plan.grid.cells if "embeddings" not in _spec(plan, cell)]
    panel = [(cell, cell.dataset) for cell in cells]
    shifts = [(cell, name) for cell in cells for name in config.datasets[cell.dataset].shift]
    lines = []
    for rule, passes in (("features", panel), ("shift_features", shifts)):
        alone = [(cell, images) for cell, images in passes if cell.encoder not in together]
        beside = [(cell, images) for cell, images in passes if cell.encoder in together]
        lines.append(_extraction(plan, rule, alone, [images for _, images in alone]))
        pairs = dict.fromkeys((cell.dataset, images) for cell, images in beside)
        lines.append(_extraction(plan, f"{rule}_together", beside, [name for _, name in pairs]))
    return [*lines, Line("features", len(plan.grid.cells) - len(cells))]


def _spec(plan: Plan, cell: Cell) -> Mapping[str, Any]:
    return plan.config.encoders[cell.encoder].spec


def _extraction(
    plan: Plan, rule: str, passes: Sequence[tuple[Cell, str]], jobs: Sequence[str]
) -> Line:
    """passes: cells with the data set whose images they see; jobs: the data set that each opens."""
    panel = plan.config.datasets
    cpu = sum(plan.data_hours(name, degraded=name in panel) for name in jobs)
    gpu = numbers = forwards = 0.0
    for cell, name in passes:
        views = plan.views(name) if name in panel else plan.images(name)
        hours = plan.forward_hours(cell.encoder, views)
        forwards += views
        cpu += hours["cpu_hours"]
        gpu += hours["gpu_hours"]
        numbers += views * plan.encoder(cell.encoder)["width"]
    images = sum(map(plan.images, jobs))
    return Line(rule, len(jobs), images, int(forwards), cpu, gpu, 4e-9 * numbers)


def _probes(plan: Plan) -> list[Line]:
    """Probes on the train part, in seconds for 10^9 of its images × width × classes."""
    config, rates = plan.config, plan.rates
    splits, seeds = config.settings["splits"], len(config.seeds)
    train = (1 - splits["test"]) * (1 - splits["calibration"]) * sum(config.fractions) / 100
    work = sum(
        train
        * plan.images(cell.dataset)
        * plan.encoder(cell.encoder)["width"]
        * len(config.datasets[cell.dataset].classes)
        for cell in plan.grid.cells
    )
    jobs = len(plan.grid.cells) * seeds
    seconds = seeds * 1e-9 * work * rates["probe_seconds"] + jobs * rates["job_seconds"]
    return [Line("probes", jobs, cpu_hours=seconds / 3600)]


def _runs(plan: Plan) -> list[Line]:
    config, each = plan.config, plan.rates["run_seconds"] / 3600
    shift = sum(run.condition in config.targets for run in plan.grid.runs())
    counts = {"run": plan.grid.count_runs() - shift, "shift_run": shift}
    lines = [Line(rule, n, cpu_hours=n * each, gigabytes=n * 4e-6) for rule, n in counts.items()]
    if config.settings["keep_predictions"]:
        jobs = len(plan.grid.cells) * len(config.seeds)
        kept = sum(_probabilities(plan, cell) for cell in plan.grid.cells) * len(config.seeds)
        lines.append(Line("kept_predictions", jobs, gigabytes=7.5e-9 * kept))
    return lines


def _probabilities(plan: Plan, cell: Cell) -> int:
    """How many a seed's full-label probe gives: of test images, and of whole shift targets."""
    entry = plan.config.datasets[cell.dataset]
    own = plan.test_images(cell.dataset) * (1 + len(plan.grid.degraded))
    return len(entry.classes) * (own + sum(map(plan.images, entry.shift)))


def _depth_sweep(plan: Plan) -> list[Line]:
    """One forward pass an image, and the full-label probes of every seed and depth."""
    cells = plan.grid.depth_cells
    if not cells:
        return []
    depths, seeds = len(plan.config.settings["depth_sweep"]["depths"]), len(plan.config.seeds)
    line = _clean_passes(plan, "depth_features", cells, times=1)
    numbers = sum(plan.images(cell.dataset) * plan.encoder(cell.encoder)["width"] for cell in cells)
    classes = [len(plan.config.datasets[cell.dataset].classes) for cell in cells]
    widths = [plan.encoder(cell.encoder)["width"] for cell in cells]
    sizes = [_train_images(plan, cell.dataset) for cell in cells]
    work = sum(a * b * c for a, b, c in zip(sizes, widths, classes, strict=True))
    hours = depths * seeds * 1e-9 * work * plan.rates["probe_seconds"] / 3600
    runs = Line("depth_runs", len(cells), cpu_hours=hours)
    return [replace(line, gigabytes=4e-9 * depths * numbers), runs]


def _adaptation(plan: Plan) -> list[Line]:
    """Trainings, whose backward pass costs two forwards, and their tests; not part of `all`."""
    cells = plan.grid.adapted_cells
    if not cells:
        return []
    section = plan.config.settings["adaptation"]
    seeds, fractions = len(section["seeds"]), section["fractions"]
    labelled = section["epochs"] * seeds * sum(fractions) / 100
    held_out, splits = section["validation"], plan.config.settings["splits"]
    share = (1 - splits["test"]) * (1 - splits["calibration"])
    times = labelled * share * (3 * (1 - held_out) + held_out)
    trained = _clean_passes(plan, "adapt", cells, times, section["precision"])
    tests = [
        _tested_views(plan, cell.dataset, percent) * seeds
        for cell in cells
        for percent in fractions
    ]
    forwards = dict.fromkeys(("cpu_hours", "gpu_hours"), 0.0)
    encoders = [cell.encoder for cell in cells for _ in fractions]
    for encoder, views in zip(encoders, tests, strict=True):
        for name, hours in plan.forward_hours(encoder, views).items():
            forwards[name] += hours
    jobs = len(cells) * seeds * len(fractions)
    tested = Line("adapted_runs", jobs, forwards=sum(tests), **forwards)
    return [replace(trained, jobs=jobs), tested]


def _tested_views(plan: Plan, dataset: str, percent: int) -> int:
    names = plan.grid.adapted_conditions(dataset, percent)
    elsewhere = [name for name in names if name in plan.config.targets]
    own = plan.test_images(dataset) * (len(names) - len(elsewhere))
    return own + sum(map(plan.images, elsewhere))


def _train_images(plan: Plan, dataset: str) -> float:
    splits = plan.config.settings["splits"]
    return plan.images(dataset) * (1 - splits["test"]) * (1 - splits["calibration"])


def _clean_passes(
    plan: Plan, rule: str, cells: Sequence[Cell], times: float, precision: str | None = None
) -> Line:
    """Every clean image of each cell through its encoder so many times."""
    cpu = gpu = 0.0
    for cell in cells:
        hours = plan.forward_hours(cell.encoder, plan.images(cell.dataset), precision)
        cpu += times * hours["cpu_hours"] + plan.data_hours(cell.dataset, degraded=False)
        gpu += times * hours["gpu_hours"]
    images = sum(plan.images(cell.dataset) for cell in cells)
    return Line(rule, len(cells), images, round(times * images), cpu, gpu)


PARTS: Sequence[Callable[[Plan], list[Line]]] = (
    *(_data, _features, _probes, _runs),
    *(_depth_sweep, _adaptation),
)
"""What is planned, in the order of the table; a study that computes much adds a function."""
