"""Where the numbers come from: versions, commit, configuration, weights, counts."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from crsbench import __version__
from crsbench.core.files import read_json

PACKAGES = (
    *("numpy", "pandas", "scikit-learn", "pillow", "torch", "timm"),
    *("open_clip_torch", "transformers", "snakemake"),
)


def provenance(
    home: Path, settings: Mapping[str, Any], encoder_runs: Mapping[str, Path | str]
) -> dict[str, Any]:
    """What the report says of its own making.

    home: the workflow's folder; settings: the config as written; encoder_runs: a run file of each
    encoder, which holds the digest of its weights and how they compare with a base model's.
    """
    runs = {name: read_json(file) for name, file in encoder_runs.items()}
    return {
        "commit": _commit(home),
        "versions": {
            "Python": platform.python_version(),
            "crsbench": __version__,
            **_versions(PACKAGES),
        },
        "config": yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100),
        "weights": {name: run["weights_sha256"] for name, run in runs.items()},
        "base_models": {
            name: run["base_model"] for name, run in runs.items() if "base_model" in run
        },
    }


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _commit(home: Path) -> str:
    """The commit of the workflow's folder, `(changed)` if it differs from it; "" if unknown."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(home), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit} (changed)" if changed else commit
