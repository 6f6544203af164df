"""What clusters and machines do to a run: disks, homes, locks, clocks, paths and locales."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from crsbench.synthetic import write_phantoms
from worlds.small_panel import DATASET, ENCODERS, SmallPanel, make, with_every_study
from worlds.workflow import HOME

SET = "my.set-1_a"
ENCODER = "statistics.one-1_x"
SPLIT = f"results/data/{DATASET}/splits/seed0.parquet"


def rename_and_use_a_table(panel: SmallPanel, data_root: str) -> None:
    """One encoder and one data set from a table, under names of all characters allowed."""
    shipped = yaml.safe_load((HOME / "config/datasets.yaml").read_text("utf-8"))[DATASET]
    entry: dict[str, Any] = {key: shipped[key] for key in ("title", "task", "classes", "licence")}
    entry |= {"reader": "table", "root": "drawn", "table": "table.csv"}
    entry["columns"] = {"id": "image_id", "path": "path", "label": "label", "group": "group"}
    panel.edit("datasets", lambda registry: (registry.clear(), registry.update({SET: entry})))
    panel.edit("encoders", lambda r: r.update({ENCODER: r.pop("image_statistics")}))

    def change(config: dict[str, Any]) -> None:
        config.update(encoders=[ENCODER], datasets=[SET], data_root=data_root, seeds=[0])
        config["studies"]["baseline_encoder"] = ENCODER

    panel.edit("config", change)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> SmallPanel:
    """A finished panel of one encoder, data set and seed, made where nothing is odd."""
    panel = make(tmp_path_factory.mktemp("plain") / "p")
    rename_and_use_a_table(panel, "data")
    write_phantoms(panel.folder / "data/drawn", "skin", "home", 90, 40)
    panel.finish("--quiet", "rules", "--", "runs")
    return panel


def in_own_mounts(command: str, panel: SmallPanel, **environment: str) -> str:
    """Run a shell command that mounts, where only it and its children see the mounts.

    `$SNAKEMAKE` is the workflow's command line. Skips where that is not allowed.
    """
    rights = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
    probe = ["unshare", *rights, "mount", "-t", "tmpfs", "none", str(panel.folder)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("mounts of one's own are not allowed here (unshare --mount)")
    (panel.folder / "snakemake").write_text(
        "#!/bin/sh\nexec " + " ".join(f"'{part}'" for part in panel.command("$@")[:-1]) + ' "$@"\n'
    )
    (panel.folder / "snakemake").chmod(0o755)
    ended = subprocess.run(
        ["unshare", *rights, "bash", "-c", f"set -u; {command}"],
        cwd=panel.folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return ended.stdout


def test_odd_folders_a_c_locale_and_no_home_change_no_byte(
    plain: SmallPanel, tmp_path: Path
) -> None:
    """Spaces, quotes, shell signs, non-ASCII letters and links in the paths; a read-only root."""
    real = tmp_path / "wörk dir's & $(touch pwned); `touch pwned` 数"
    (tmp_path / "link").symlink_to(real)
    panel = SmallPanel(tmp_path / "link")
    made = make(real)
    data = tmp_path / "données {à} moi"
    shutil.copytree(plain.folder / "data", data)
    (real / "liée").symlink_to(data)
    rename_and_use_a_table(made, "liée")
    out = in_own_mounts(
        f"mount --bind -o ro '{data}' '{data}' && mount -o remount,bind,ro '{data}' && "
        f"! touch '{data}/x' 2>/dev/null && ./snakemake --quiet rules -- runs",
        panel,
        LC_ALL="C",
        HOME="/nonexistent",
    )
    assert panel.made() == plain.made(), out
    assert not list(tmp_path.rglob("pwned"))


def test_names_of_all_characters_allowed_stay_distinct_in_every_study(tmp_path: Path) -> None:
    """Also where encoder and data set, joined, would be the same: a × b_c and a_b × c."""
    panel = with_every_study(make(tmp_path / "p"))
    encoders, datasets = ("a", "a_b", "x.1-y_z"), ("b_c", "c", "s-2.t_u")
    shipped = yaml.safe_load((HOME / "config/encoders.yaml").read_text("utf-8"))
    network = shipped["vit_tiny_untrained"]
    panel.edit("encoders", lambda r: r.update(dict.fromkeys(encoders, network)))
    panel.edit("datasets", lambda r: r.update(dict.fromkeys(datasets, r[DATASET])))

    def change(config: dict[str, Any]) -> None:
        config.update(encoders=list(encoders), datasets=list(datasets))
        config["studies"]["baseline_encoder"] = "a"
        config["recalibration"]["primary"] = list(encoders)
        for section in ("depth_sweep", "adaptation"):
            config[section].update(encoders=list(encoders), datasets=list(datasets))

    panel.edit("config", change)
    planned = panel.finish("-n", "--quiet", "host")
    for encoder in encoders:
        for dataset in datasets:
            assert f"rule control_runs_{encoder}@{dataset}:" in planned
    for rule in ("adapt", "depth_features", "recalibrate"):
        assert re.search(rf"^{rule} +9$", planned, re.MULTILINE), rule


def test_a_full_disk_is_reported_in_one_sentence_and_costs_nothing_but_space(
    tmp_path: Path,
) -> None:
    panel = make(tmp_path / "p")
    panel.results.mkdir()
    out = in_own_mounts(
        "mount -t tmpfs -o size=400k none results && ! ./snakemake --quiet rules -- $TARGET "
        "&& echo REFUSED && ls -A results/data/*/phantoms "
        "&& mount -o remount,size=100m results && ./snakemake --quiet rules -- $TARGET "
        "&& echo ENDED && find results -name '*.part' && cp -r results kept",
        panel,
        TARGET=SPLIT,
    )
    refused = out.partition("REFUSED")[0]
    assert "cannot be written: No space left on device; fix that and rerun." in refused, out
    assert "Traceback" not in refused, out
    assert "ENDED" in out, out
    assert ".part" not in out, out
    kept = pd.read_csv(panel.folder / f"kept/data/{DATASET}/phantoms/table.csv")
    assert len(kept) == 90
    assert (panel.folder / "kept" / Path(SPLIT).relative_to("results")).is_file()


def test_a_results_folder_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    panel = make(tmp_path / "p")
    panel.results.mkdir()
    out = in_own_mounts(
        "mount --bind results results && mount -o remount,bind,ro results; "
        f"./snakemake --quiet rules -- {SPLIT}; echo ended with $?",
        panel,
    )
    assert "ended with 1" in out, out
    assert "Read-only file system" in out, out
    assert "Traceback" not in out, out


def test_a_second_snakemake_and_a_stale_lock_are_refused_with_the_command_that_unlocks(
    tmp_path: Path,
) -> None:
    panel = make(tmp_path / "p")
    process = panel.start("--quiet", "rules", "--", SPLIT)
    deadline = time.monotonic() + 120
    while not list(panel.folder.glob(".snakemake/locks/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGSTOP)  # so that it is still at work when the second comes
    second = panel.run("--", SPLIT)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    after = panel.run("--", SPLIT)
    for refused in (second, after):
        assert refused.returncode != 0
        assert "Directory cannot be locked" in refused.stdout, refused.stdout
        assert "--unlock" in refused.stdout, refused.stdout
    panel.finish("--unlock")
    panel.finish("--quiet", "rules", "--", SPLIT)


def test_a_clock_that_jumps_changes_no_byte(plain: SmallPanel, tmp_path: Path) -> None:
    """Files from the future, or of long ago, as after the clock of one machine was set."""
    folder = tmp_path / "p"
    shutil.copytree(plain.folder, folder, copy_function=shutil.copy2)
    panel = SmallPanel(folder)

    def move(name: str, seconds: float) -> None:
        place = panel.results / name
        for file in [place, *place.rglob("*")]:
            if file.is_file():
                os.utime(file, (time.time() + seconds, time.time() + seconds))

    move(f"data/{SET}/manifest.parquet", 3600)
    move("features", 3600)
    move("runs", -3600)
    # The jump alone makes nothing new: what is small is compared by its content.
    assert "Nothing to be done" in panel.finish("-n", "--", "runs")
    shutil.rmtree(panel.results / "probes")
    shutil.rmtree(panel.results / f"runs/{ENCODER}/{SET}/seed0/clean")
    refused = panel.run("--quiet", "rules", "--", "runs")
    assert refused.returncode != 0
    assert "This could indicate a clock skew problem" in refused.stdout, refused.stdout
    move("", 0)  # as docs/faq.md says: touch what is from the future
    panel.finish("--quiet", "rules", "--", "runs")
    assert panel.made() == plain.made()


def test_no_optional_study_stands_before_the_score_and_a_cell_left_out_leaves_them_all(
    tmp_path: Path,
) -> None:
    """So what fails in one of them never blocks the score, nor, once left out, the report."""
    panel = with_every_study(make(tmp_path / "p"))

    def rules_of(*arguments: str) -> set[str]:
        counts = panel.finish("-n", "--quiet", "host", *arguments)
        return set(re.findall(r"^([\w@.-]+) +\d+$", counts, re.MULTILINE))

    optional = {"adapt", "adapted_runs", "depth_features", "depth_runs", "recalibrate"}
    optional |= {"studies_of_kept_predictions", "studies_of_features"}
    controls = {f"control_runs_{encoder}@{DATASET}" for encoder in ENCODERS}
    assert rules_of() >= optional | controls | {"studies_of_control_runs", "score_tables", "report"}
    assert rules_of("--", "crs") == {
        *("phantoms", "manifest", "test_set", "split", "features", "probes", "run"),
        *("runs_table", "score_tables", "crs", "total"),
    }
    left_out = f'without={{"{ENCODERS[1]}/{DATASET}": "adapt failed: it said why"}}'
    rest = rules_of("--config", left_out)
    assert rest >= {
        "recalibrate",
        "studies_of_features",
        "studies_of_control_runs",
        "report",
        min(controls),
    }
    assert not rest & {"adapt", "adapted_runs", "depth_features", "depth_runs", max(controls)}
