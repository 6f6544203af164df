"""A panel of seconds for trials that run the whole workflow many times: faults, kills, SLURM.

Two encoders on one set of drawn images; what `make` writes lies in the folder of the trial, so that
the config and the registries can be changed there.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from crsbench.config.planned import FOLDER
from worlds.workflow import HOME, snakemake_command

ENCODERS = ("image_statistics", "vit_tiny_untrained")
DATASET = "phantom_skin"


@dataclass(frozen=True)
class SmallPanel:
    """A working folder with a config; results lie in `results`, below it."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def command(self, *arguments: str, cores: int | None = 2) -> list[str]:
        return [
            *snakemake_command(),
            *(("--cores", str(cores)) if cores else ()),
            *("--configfile", "config.yaml"),
            *arguments,
        ]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start the workflow in a session of its own, its output in `snakemake.out`."""
        with (self.folder / "snakemake.out").open("a", encoding="utf-8") as out:
            return subprocess.Popen(
                self.command(*arguments, **options),
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, **options),
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=600,
            check=False,
        )

    def finish(self, *arguments: str, **options: Any) -> str:
        """Run to the end; what it printed. Raises AssertionError when it fails."""
        ended = self.run(*arguments, **options)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def edit(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        file = self.folder / f"{name}.yaml"
        content = yaml.safe_load(file.read_text("utf-8"))
        change(content)
        file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8")

    def made(self) -> dict[str, bytes]:
        """The bytes of every result, but for logs and the image scan's cache (keyed by times).

        The report shows the config, so also where the registries lie: that is masked.
        """
        return {
            str(path.relative_to(self.results)): path.read_bytes().replace(
                os.fsencode(self.folder), b"FOLDER"
            )
            for path in sorted(self.results.rglob("*"))
            if path.is_file()
            and path.relative_to(self.results).parts[0] != "logs"
            and path.name != "images.cache.jsonl"
        }


def make(folder: Path, **environment: str) -> SmallPanel:
    """Write the panel's config, of the keys that must be there, and registries to a new folder."""
    folder.mkdir(parents=True)
    schema = yaml.safe_load((HOME / "workflow/schemas/config.schema.yaml").read_text("utf-8"))
    shipped = {
        name: yaml.safe_load((HOME / f"config/{name}.yaml").read_text("utf-8"))
        for name in ("encoders", "datasets", "demo")
    }
    drawn = shipped["datasets"][DATASET]
    drawn["phantom"] |= {"count": 90, "size": 40}
    drawn.pop("shift", None)
    config = {key: shipped["demo"][key] for key in schema["required"]} | {
        "results": "results",
        "encoder_registry": str(folder / "encoders.yaml"),
        "dataset_registry": str(folder / "datasets.yaml"),
        "encoders": list(ENCODERS),
        "datasets": [DATASET],
        "seeds": [0, 1],
        "fractions": [10, 100],
        "perturbations": {"jpeg": [10], "rician_noise": [0.1]},
        "bootstrap": {"replicates": 200, "case_replicates": 50},
    }
    config["image"]["short_side"] = 40
    config["studies"] = {
        "baseline_encoder": ENCODERS[0],
        "reference_invariance": {"trials": 2, "newcomers": 1},
    }
    files = {
        "encoders": {name: shipped["encoders"][name] for name in ENCODERS},
        "datasets": {DATASET: drawn},
        "config": config,
    }
    for name, content in files.items():
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return SmallPanel(folder, environment)


def with_every_study(panel: SmallPanel) -> SmallPanel:
    """The same panel with all that a config may ask for, LoRA adaptation too, at its smallest."""

    def ask(config: dict[str, Any]) -> None:
        demo = yaml.safe_load((HOME / "config/demo.yaml").read_text("utf-8"))
        config["studies"] |= demo["studies"] | config["studies"]
        config["studies"]["subgroups"] |= {"columns": ["sex", "skin_tone"], "min_images": 4}
        config["keep_predictions"] = True
        config["recalibration"] = demo["recalibration"] | {"primary": [ENCODERS[0]], "cases": [5]}
        config["control_probes"] = demo["control_probes"] | {"cells_per_job": 1}
        network = [ENCODERS[1]]
        config["depth_sweep"] = {
            **{"encoders": network, "datasets": [DATASET]},
            **{"depths": [50, 100], "without_norm": []},
        }
        config["adaptation"] = demo["adaptation"] | {
            **{"encoders": network, "datasets": [DATASET], "seeds": [0], "fractions": [100]},
            **{"conditions": ["jpeg-1"], "epochs": 2, "rank": 2, "alpha": 4, "in_report": True},
        }

    panel.edit("config", ask)
    return panel


def edit_settings(panel: SmallPanel) -> None:
    """Change what decides the features: of all by the config, of one encoder by its entry."""

    def other_levels(config: dict[str, Any]) -> None:
        config["perturbations"]["jpeg"] = [60]

    def other_preprocessing(encoders: dict[str, Any]) -> None:
        encoders[ENCODERS[1]]["preprocessing"]["std"] = [0.5, 0.5, 0.4]

    panel.edit("config", other_levels)
    panel.edit("encoders", other_preprocessing)


def edit_in_mid_run(panel: SmallPanel, *arguments: str, **options: Any) -> None:
    """Start a run, edit its files before any features are there, and wait for its good end."""
    process = panel.start(*arguments, **options)
    deadline = time.monotonic() + 120
    while not list((panel.folder / FOLDER).glob("*.json")):
        output = (panel.folder / "snakemake.out").read_text("utf-8")
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.02)
    edit_settings(panel)
    assert not list(panel.results.rglob("*.arrow"))
    assert process.wait(500) == 0, (panel.folder / "snakemake.out").read_text("utf-8")
