"""The settings that a workflow started with, for its jobs in processes of their own.

Such a job reads the Snakefile again, on a cluster hours later. It must not read the config and the
registries again, which may have been edited since: the main process leaves their content in a
file, and its name in the environment of every job.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crsbench.config.load import load_config
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import atomic_write

VARIABLE = "CRSBENCH_PLANNED"
"""The environment variable that holds the SHA-256 of the file, which is its name too."""

FOLDER = Path(".snakemake") / "crsbench"
"""Below the working directory."""


def keep_planned(settings: Mapping[str, Any], config: Config) -> None:
    """Leave what a configuration was loaded from to the jobs that this process starts."""
    content = json.dumps({"settings": settings, "registries": config.registries})
    digest = hashlib.sha256(content.encode()).hexdigest()
    file = FOLDER / f"{digest}.json"
    if not file.is_file():
        with atomic_write(file) as part:
            part.write_text(content, encoding="utf-8")
    os.environ[VARIABLE] = digest


def load_planned(home: Path) -> Config:
    """The configuration of the main process that started this job.

    Raises UserError when the job was not given it or its file is no longer there as it was written.
    """
    digest = os.environ.get(VARIABLE)
    if digest is None:
        raise UserError(
            f"The job lacks the environment variable {VARIABLE}, which names the settings that it "
            "was planned with; the executor must pass the environment on."
        )
    file = FOLDER / f"{digest}.json"
    content = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(
            f"{file}, the settings that the job was planned with, is gone or was changed; run "
            "Snakemake again."
        )
    return load_config(**json.loads(content), home=home)
