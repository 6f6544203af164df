"""The plan of the demo beside the jobs that Snakemake counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crsbench.config.load import load_config
from crsbench.operations.plan import planned


def test_the_demo_counts_the_jobs_of_snakemake(
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    snakemake: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where no manifest lies
    config = home / "config" / "demo.yaml"
    ended = snakemake("-n", "--quiet", "rules", "--configfile", str(config), cwd=tmp_path)
    counts = {
        line.split()[0]: int(line.split()[1])
        for line in ended.stdout.splitlines()
        if len(line.split()) == 2 and line.split()[1].isdigit()
    }
    plan = (
        planned(load_config(settings("demo"), home))
        .set_index("rule")
        .drop(["adapt", "adapted_runs"])
    )
    assert len(plan) == 13
    assert plan["jobs"].to_dict() == {rule: counts[rule] for rule in plan.index}
    assert plan.loc["features", "images"] == 6 * 780  # opened once by each of six encoders
    assert plan.loc["features", "forwards"] == 6 * (780 + 15 * (56 + 44 + 56))
