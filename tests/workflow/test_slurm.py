"""The workflow on a SLURM of one node: same bytes, resources as asked for, a cancelled job."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from crsbench.config.load import load_config
from crsbench.features.store import read_metadata
from crsbench.operations.resources import (
    count_images,
    extraction_needs,
    manifest_needs,
    probes_needs,
)
from worlds.slurm import CannotStartError, one_node_slurm
from worlds.small_panel import DATASET, ENCODERS, SmallPanel, edit_in_mid_run, make
from worlds.workflow import HOME, rules_of_workflow

pytestmark = pytest.mark.slurm

FAST = [
    *("--slurm-init-seconds-before-status-checks", "1"),
    *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "10"),
]
"""Ask for the state of jobs more often than one may on a cluster of others."""

EXTRACTION = "features_together"
"""The rule that embeds a data set with both encoders of the panel at once."""

TARGETS = ["results/tables/crs.parquet", "predictions"]


def small(folder: Path, **environment: str) -> SmallPanel:
    panel = make(folder, **environment)
    panel.edit("config", lambda config: config.update(seeds=[0]))
    panel.edit("config", lambda config: config["extraction"].update(together=True))
    return panel


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a running cluster."""
    try:
        with one_node_slurm(tmp_path_factory.mktemp("slurm")) as environment:
            yield environment
    except CannotStartError as error:
        pytest.skip(f"no SLURM here: {error}")


@pytest.fixture(scope="module")
def local(cluster: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> SmallPanel:
    """What a run without the cluster makes."""
    panel = small(tmp_path_factory.mktemp("slurm-local") / "local")
    panel.finish("--", *TARGETS)
    return panel


def jobs_of(cluster: dict[str, str]) -> list[dict[str, str]]:
    """All jobs that the cluster knows, as `scontrol` shows them."""
    output = subprocess.run(
        ["scontrol", "--oneliner", "show", "job"],
        env=cluster,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [
        dict(re.findall(r"(\w+)=(\S*)", line)) for line in output.splitlines() if "JobId" in line
    ]


def wait_for(found: Callable[[], str | None], seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (value := found()) is not None:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain")


def test_a_cluster_gives_the_bytes_of_a_local_run_also_after_a_cancelled_job(
    cluster: dict[str, str], local: SmallPanel, tmp_path: Path
) -> None:
    panel = small(tmp_path / "on a $(touch pwned) `touch pwned` cluster", **cluster)
    process = panel.start(
        *("--profile", str(HOME / "profiles/slurm"), "--jobs", "8", *FAST),
        *("--set-resources", f"{EXTRACTION}:gpu=1", f"{EXTRACTION}:slurm_partition=gpu"),
        *("--", *TARGETS),
        cores=None,
    )

    def running_extraction() -> str | None:
        for job in jobs_of(cluster):
            wanted = f"rule_{EXTRACTION}_wildcards_{DATASET}"
            if job["JobState"] == "RUNNING" and job["Comment"] == wanted:
                return job["JobId"]
        assert process.poll() is None, (panel.folder / "snakemake.out").read_text("utf-8")
        return None

    cancelled = wait_for(running_extraction, 300)
    subprocess.run(["scancel", cancelled], env=cluster, check=True)
    assert process.wait(400) == 0, (panel.folder / "snakemake.out").read_text("utf-8")
    assert panel.made() == local.made()
    assert not list(tmp_path.rglob("pwned"))  # no path was read by a shell

    jobs = jobs_of(cluster)
    rules = [re.match("rule_([a-z_]+?)(_wildcards|$)", job["Comment"])[1] for job in jobs]
    # The runs, splits and tables were worked off by the main process.
    assert sorted(rules) == [EXTRACTION] * 2 + ["manifest"] + ["probes"] * 2
    states = {job["JobId"]: job["JobState"] for job in jobs}
    assert states.pop(cancelled) == "CANCELLED"
    assert set(states.values()) == {"COMPLETED"}
    by_rule: dict[str, list[dict[str, str]]] = {}
    for rule, job in zip(rules, jobs, strict=True):
        by_rule.setdefault(rule, []).append(job)
    for job in by_rule[EXTRACTION]:
        assert job["Partition"] == "gpu"
        assert "gres/gpu=1" in job["TRES"] or job["TresPerJob"] == "gres:gpu:1"
    assert all(job["Partition"] == "main" for job in by_rule["probes"])
    # The second attempt asks for twice as much memory and time.
    memory = {job["JobId"]: job["MinMemoryNode"] for job in by_rule[EXTRACTION]}
    first = memory[cancelled]
    assert sorted(memory.values()) == sorted([first, f"{2 * int(first[:-1])}{first[-1]}"])


def test_submitted_jobs_make_what_was_planned_though_the_files_are_edited(
    cluster: dict[str, str], local: SmallPanel, tmp_path: Path
) -> None:
    panel = small(tmp_path / "edited", **cluster)
    before = len(jobs_of(cluster))
    profile = "--profile", str(HOME / "profiles/slurm"), "--jobs", "8"
    edit_in_mid_run(panel, *profile, *FAST, "--", *TARGETS, cores=None)
    assert panel.made() == local.made()
    submitted = jobs_of(cluster)[before:]
    assert sorted(job["JobState"] for job in submitted) == ["COMPLETED"] * 4
    for encoder in ENCODERS:
        file = panel.results / "features" / encoder / DATASET / "jpeg-1.arrow"
        assert read_metadata(file)["made_by"]["perturbations"]["jpeg"] == [10]
    assert re.search(rf"{EXTRACTION} +1\n", panel.finish("-n", "--", *TARGETS))


def test_what_jobs_ask_for_follows_from_the_sizes_in_the_config() -> None:
    settings = yaml.safe_load((HOME / "config/config.yaml").read_text("utf-8"))
    paper = load_config(settings, HOME)
    assert count_images(paper, "isic2019") == 25331
    assert count_images(paper, "chexpert") == 191027 + 202
    assert count_images(paper, "mimic") == 50_000  # its entry states no size
    # 25,331 images, a fifth of them 15 times more: 4 × 25,331 views of 0.03 s, and 15 min.
    assert extraction_needs(paper, "isic2019").runtime == 15 + 51
    # A shift target is embedded once: 50,000 × 0.03 s.
    assert extraction_needs(paper, "mimic").runtime == 15 + 25
    assert extraction_needs(paper, "isic2019").mem_mb == 8000 + 7 * 1000
    # 191,229 × 2,048 × 4 bytes, six times; five fits of at most 600 s.
    assert probes_needs(paper, "chexpert").mem_mb == 2000 + 9400
    assert probes_needs(paper, "chexpert").runtime == 15 + 50
    assert probes_needs(paper, "chexpert").at(3).mem_mb == 4 * 11400
    settings["extraction"] |= {"device": "cpu"}
    settings.pop("adaptation", None)  # whose precision a CPU lacks
    on_cpu = load_config(settings, HOME)
    assert extraction_needs(on_cpu, "mimic").runtime == 15 + 1250
    assert manifest_needs(paper, "aptos2019").runtime == 15 + 7
    demo = load_config(yaml.safe_load((HOME / "config/demo.yaml").read_text("utf-8")), HOME)
    assert count_images(demo, "phantom_skin") == 280


def test_every_rule_that_runs_in_the_main_process_is_local() -> None:
    """A `run:` block takes milliseconds; submitted to a cluster it would take seconds."""
    rules, local = rules_of_workflow()
    in_process = {
        name
        for name, body in rules.items()
        if "\n    run:" in body and "in_worker" not in body  # those hand it to another process
    }
    without_work = {
        name for name, body in rules.items() if not re.search("    (run|script):", body)
    }
    assert "run" in in_process
    assert "all" in without_work
    assert sorted((in_process | without_work) - local) == []
    assert {"features", "probes", "manifest", "case_bootstrap"} <= set(rules) - local


def test_every_rule_that_asks_for_a_gpu_or_for_memory_of_its_own_is_named_in_the_profile() -> None:
    """By an example of a line for it: a rule must not be found missing on somebody's cluster."""
    rules, local = rules_of_workflow()
    asking = {
        name
        for name, body in rules.items()
        if re.search(r"\n        (gpu|mem_mb|runtime)=", body) and name not in local
    }
    assert {"features", "adapt", "adapted_runs", "depth_features", "probes", "manifest"} <= asking
    profile = (HOME / "profiles/slurm/config.yaml").read_text("utf-8")
    named = set(re.findall(r"^#   (\w+): \{", profile, re.MULTILINE))
    inherited = {"shift_features", "features_together", "shift_features_together"}  # by `use rule`
    assert named == asking | inherited
    # Rules without a name of their own: a job of control probes is named beside them, those of the
    # studies ask for the default.
    nameless = sorted(
        file.name
        for file in (HOME / "workflow/rules").glob("*.smk")
        if re.search(r"^ *rule:$", file.read_text("utf-8"), re.MULTILINE)
    )
    assert nameless == ["control_probes.smk", "studies.smk"]
    assert "control_runs_ENCODER@DATASET" in profile
