"""How fast the workflow works off the grid: planning, features, probes, 17,575 runs, scores.

    python benchmarks/grid.py [--quick] [--encoders N] [--keep FOLDER]

The published shape (15 encoders, ISIC, APTOS and CheXpert with MIMIC, 5 seeds, 16 or 17 conditions,
5 label fractions) on phantoms of 32 pixels and generated vectors of 32 numbers, through the real
rules with the shipped profile: some six minutes. Then part of the same runs again with Snakemake's
own settings, for the ratio. `--encoders` makes a smaller or larger panel; `--quick` takes 2
encoders, 1 seed, CheXpert with MIMIC alone, and no report; `--keep` leaves the files in a folder to
look at. The last line is one JSON object: seconds of wall clock and of CPU by step, jobs a second,
the main process' peak memory, and the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crsbench.config.grid import Grid
from crsbench.config.layout import Layout
from crsbench.config.load import load_config
from crsbench.data.manifest import read_manifest

HOME = Path(__file__).resolve().parents[1]
PROFILE = str(HOME / "profiles" / "default")
PHANTOMS = {
    "isic2019": {"kind": "skin", "site": "home", "count": 250, "size": 32},
    "aptos2019": {"kind": "fundus", "site": "home", "count": 250, "size": 32},
    "chexpert": {"kind": "chest", "site": "home", "count": 250, "size": 32},
    "mimic": {"kind": "chest", "site": "foreign", "count": 50, "size": 32},
}
WIDTH = 32
STOCK_SECONDS = 15
"""How long Snakemake's own settings are watched, from the first run file on."""


@dataclass(frozen=True)
class World:
    """A working folder with the registries, the config and the generated vectors of a panel."""

    folder: Path
    grid: Grid
    layout: Layout

    def targets(self, pattern: str) -> list[str]:
        """The files of a pattern of the layout, over all that the panel has."""
        config = self.grid.config
        return sorted(
            {
                self.layout.at(
                    pattern,
                    **{"encoder": run.encoder, "dataset": run.dataset, "seed": run.seed},
                    condition=run.condition,
                    percent=run.percent,
                )
                for run in self.grid.runs()
            }
            | {
                self.layout.at(self.layout.manifest, dataset=name)
                for name in config.targets
                if pattern == self.layout.split
            }
        )


@dataclass(frozen=True)
class Cost:
    """What a Snakemake command took; peak_gb is the largest process, the main one where alone."""

    wall: float
    cpu: float
    peak_gb: float

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in vars(self).items()}


def build_world(
    folder: Path,
    n_encoders: int,
    n_seeds: int,
    datasets_used: Sequence[str] = ("isic2019", "aptos2019", "chexpert"),
) -> World:
    settings = yaml.safe_load((HOME / "config/config.yaml").read_text("utf-8"))
    schema = yaml.safe_load((HOME / "workflow/schemas/config.schema.yaml").read_text("utf-8"))
    settings = {key: settings[key] for key in schema["required"]}  # no further studies
    shipped = yaml.safe_load((HOME / "config/encoders.yaml").read_text("utf-8"))
    encoders = {}
    for number in range(n_encoders):
        family = settings["encoders"][number % len(settings["encoders"])]
        name = f"{family}-{number // len(settings['encoders'])}"
        encoders[name] = {
            key: shipped[family][key]
            for key in ("title", "group", "licence", "without_datasets")
            if key in shipped[family]
        } | {"library": "embeddings", "embeddings": f"{name}/{{dataset}}/{{condition}}.npz"}
    registry = yaml.safe_load((HOME / "config/datasets.yaml").read_text("utf-8"))
    datasets = {}
    for name, phantom in PHANTOMS.items():
        kept = ("title", "licence", "task", "classes", "shift", "excluded_classes")
        datasets[name] = {key: registry[name][key] for key in kept if key in registry[name]}
        datasets[name] |= {"reader": "phantom", "phantom": phantom}
    settings |= {
        "results": "results",
        "weights_root": "vectors",
        "encoder_registry": str(folder / "encoders.yaml"),
        "dataset_registry": str(folder / "datasets.yaml"),
        "encoders": list(encoders),
        "datasets": list(datasets_used),
        "seeds": list(range(n_seeds)),
        "image": {**settings["image"], "short_side": 32},
        "extraction": {"device": "cpu", "precision": "float32", "batch_size": 32, "workers": 0},
        "studies": {
            "baseline_encoder": next(iter(encoders)),
            "reference_invariance": settings["studies"]["reference_invariance"],
        },
    }
    contents = {"encoders": encoders, "datasets": datasets, "config": settings}
    for name, content in contents.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    config = load_config(settings, HOME)
    return World(folder, Grid(config), Layout(config.results))


def write_vectors(world: World) -> None:
    """Vectors that carry the labels under noise, more of it in the degraded conditions."""
    config = world.grid.config
    for number, cell in enumerate(world.grid.cells):
        random = np.random.default_rng(number)
        direction = random.normal(size=(len(config.datasets[cell.dataset].classes), WIDTH))
        for condition in world.grid.conditions(cell.dataset):
            images = condition if condition in config.targets else cell.dataset
            manifest = read_manifest(
                world.folder / world.layout.at(world.layout.manifest, dataset=images)
            )
            noise = random.normal(size=(len(manifest.image_ids), WIDTH))
            signal_ = np.asarray(manifest.truth, dtype=float) @ direction
            file = world.folder / "vectors" / cell.encoder / cell.dataset / f"{condition}.npz"
            file.parent.mkdir(parents=True, exist_ok=True)
            vectors = (signal_ + (2 + 2 * (condition != "clean")) * noise).astype(np.float32)
            np.savez(file, image_id=manifest.image_ids, features=vectors)


def command(*arguments: str, profile: str = PROFILE) -> list[str]:
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(HOME / "Snakefile")),
        *("--configfile", "config.yaml", "--cores", "2", "--workflow-profile", profile),
        *arguments,
    ]


def snakemake(world: World, *arguments: str) -> Cost:
    """Run to the end; its output goes to a file beside the config, shown when it fails."""
    log = world.folder / "output.txt"
    with log.open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command(*arguments), cwd=world.folder, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    if status:
        sys.exit(f"{log.read_text('utf-8')[-3000:]}\nsnakemake {' '.join(arguments)[:200]} failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def stock_jobs_per_second(world: World, seconds: float) -> tuple[int, float]:
    """Runs made, and a second, in the first seconds of the same runs with the stock settings."""
    runs = world.folder / "results/runs"
    shutil.rmtree(runs)
    process = subprocess.Popen(
        command("--", "runs", profile="none"),
        cwd=world.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None and not any(runs.rglob("*.json")):
            time.sleep(0.2)
        start = time.perf_counter()
        while process.poll() is None and time.perf_counter() - start < seconds:
            time.sleep(0.2)
        made = sum(1 for _ in runs.rglob("*.json")) - 1
        return made, made / (time.perf_counter() - start)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(world: World, stock_seconds: float, last: str) -> dict[str, Any]:
    """last: the target that the road ends in."""
    layout, n_runs = world.layout, world.grid.count_runs()
    costs = {"plan": snakemake(world, "-n", "--quiet", "--", last)}
    costs["data"] = snakemake(world, "--", *world.targets(layout.split))
    write_vectors(world)
    costs["features"] = snakemake(world, "--", *world.targets(layout.features))
    costs["probes"] = snakemake(world, "--", *world.targets(layout.probe))
    costs["runs"] = snakemake(world, "--", "runs")
    costs["scores"] = snakemake(world, "--", last)
    costs["nothing_to_do"] = snakemake(world, "--", last)
    one = world.folder / layout.run_file(next(world.grid.runs()))
    one.unlink()
    costs["one_run"] = snakemake(world, "--", str(one.relative_to(world.folder)))
    made, stock = stock_jobs_per_second(world, stock_seconds)
    ours = n_runs / costs["runs"].wall
    whole = ("data", "features", "probes", "runs", "scores")
    return {
        "runs": n_runs,
        "costs": {name: cost.to_json() for name, cost in costs.items()},
        "seconds_from_features_to_scores": round(sum(costs[name].wall for name in whole), 1),
        "ms_per_run": round(1000 * costs["runs"].wall / n_runs, 2),
        "ms_cpu_per_run": round(1000 * costs["runs"].cpu / n_runs, 2),
        "runs_per_second": round(ours, 1),
        "stock_runs_watched": made,
        "stock_runs_per_second": round(stock, 3),
        "ratio_to_stock": round(ours / stock, 1) if stock else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small panel, no report")
    parser.add_argument("--encoders", type=int, help="how many encoders (15)")
    parser.add_argument("--keep", type=Path, help="a new folder to work in and leave behind")
    options = parser.parse_args()
    n_encoders = options.encoders or (2 if options.quick else 15)
    with tempfile.TemporaryDirectory(prefix="crsbench-grid-") as temporary:
        folder = Path(temporary) if options.keep is None else options.keep.resolve()
        folder.mkdir(exist_ok=True)
        size = {"n_seeds": 1, "datasets_used": ["chexpert"]} if options.quick else {"n_seeds": 5}
        world = build_world(folder, n_encoders, **size)
        load = os.getloadavg()[0]
        how = (4, "crs") if options.quick else (STOCK_SECONDS, "all")
        found = measure(world, *how)
    print(
        json.dumps(
            {"benchmark": "grid", "encoders": n_encoders, **found}
            | {"cpus": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
        )
    )


if __name__ == "__main__":
    main()
