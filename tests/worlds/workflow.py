"""The workflow's own folder, its shipped configs, its rules, its command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parents[2]


NAME_ENCODERS = ("recalibration", "depth_sweep", "adaptation")
"""The optional sections of a config that name encoders and data sets, which must be known.

A panel of the shipped registries' names needs no section dropped, one of other registries does.
"""


def demo_without_sections() -> dict[str, Any]:
    content = yaml.safe_load((HOME / "config/demo.yaml").read_text("utf-8"))
    return {key: value for key, value in content.items() if key not in NAME_ENCODERS}


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
