"""What the terminal shows of a run: one line of progress, one table of what failed."""

from __future__ import annotations

import io
import json
import logging
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from crsbench.core.errors import UserError, attempt
from crsbench.operations.console import (
    Console,
    clock,
    command_for,
    failure_report,
    is_noise,
    summary,
)

ARGV = ["snakemake", "--cores", "2", "--configfile", "my config.yaml", "-n", "--", "crs"]
CELL = {"encoder": "means", "dataset": "tints"}


def record(event: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"event": event, **fields})


def broken(name: str) -> None:
    raise UserError(f"The encoder '{name}' is broken: it's not finite.")


def started(console: Console, jobid: int, rule: str = "run", **wildcards: str) -> None:
    console.handle(record("job_info", jobid=jobid, rule_name=rule, wildcards=wildcards))


def failed(console: Console, jobid: int, output: str, log: Path | str, rule: str = "run") -> None:
    logs = [str(log)] if log else []
    console.handle(record("job_error", jobid=jobid, rule_name=rule, output=[output], log=logs))


def test_the_table_names_target_cause_log_and_the_command_to_make_it_alone(tmp_path: Path) -> None:
    console = Console(io.StringIO())
    log = tmp_path / "features.log"
    started(console, 1, "features", **CELL)
    with pytest.raises(UserError):
        attempt(str(log), broken, "means")
    failed(console, 1, "results/ein Ordner/clean.arrow", log, "features")
    reported = failure_report(console, ARGV, {}, 10)
    assert reported.startswith("1 job failed; 0 of 10 steps were made.")
    assert "  cause   The encoder 'means' is broken: it's not finite.\n" in reported
    assert f"  log     {log}\n" in reported
    alone = next(line for line in reported.splitlines() if line.startswith("  alone"))
    words = shlex.split(alone.removeprefix("  alone"))
    kept = ["snakemake", "--cores", "2", "--configfile", "my config.yaml"]
    assert words == [*kept, "--", "results/ein Ordner/clean.arrow"]


def test_the_command_that_scores_the_others_leaves_out_all_that_failed(tmp_path: Path) -> None:
    console = Console(io.StringIO())
    started(console, 1, "features", **CELL)
    failed(console, 1, "a.arrow", "", "features")
    started(console, 2, "weights", encoder="clip")
    failed(console, 2, "clip.json", "", "weights")
    argv = [*ARGV[:5], "--config", "results=r", 'without={"old": "why"}', "--", "crs"]
    command = failure_report(console, argv, {"old": "why"}, 10).splitlines()[-1]
    words = shlex.split(command)
    assert words[-3:-1] == ["--config", "results=r"]
    left_out = json.loads(words[-1].removeprefix("without="))
    assert set(left_out) == {"old", "means/tints", "clip"}
    assert left_out["means/tints"].startswith("features failed: it left no cause; it may have been")


def test_jobs_that_fail_of_one_cause_are_reported_once(tmp_path: Path) -> None:
    console = Console(io.StringIO())
    log = tmp_path / "log"
    for jobid in range(5):
        started(console, jobid, **CELL)
        log.write_text("Traceback ...\nValueError: no\n")
        failed(console, jobid, f"{jobid}.json", log)
    reported = failure_report(console, ARGV, {}, 10)
    assert reported.startswith("5 jobs failed")
    assert "0.json (and 4 more of the same cause)" in reported
    assert reported.count("ValueError: no") == 1 + 1  # the table, and the reason in the command


@pytest.mark.parametrize("log", ["file/log", "file/deeper/log"])
def test_a_log_that_cannot_be_written_still_leaves_the_cause(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    (tmp_path / "file").write_text("in the way of a folder")
    console = Console(io.StringIO())
    started(console, 1)
    with pytest.raises(UserError):
        attempt(str(tmp_path / log), broken, "means")
    failed(console, 1, "a.json", tmp_path / log)
    assert "  cause   The encoder 'means' is broken" in failure_report(console, ARGV, {}, 10)
    failed(console, 2, "b.json", tmp_path / "file" / "another job's log")
    assert "it left no cause" in failure_report(console, ARGV, {}, 10)


def test_a_log_of_an_earlier_attempt_is_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an old sentence\n")
    console = Console(io.StringIO())
    console.handle(
        record("job_info", jobid=1, rule_name="run", wildcards={}, created=time.time() + 60)
    )
    failed(console, 1, "a.json", log)
    assert "an old sentence" not in failure_report(console, ARGV, {}, 10)


def test_what_a_later_attempt_fixes_is_no_failure() -> None:
    console = Console(io.StringIO())
    started(console, 1)
    failed(console, 1, "a.json", "")
    started(console, 1)
    console.handle(record("job_finished", job_id=1))
    assert console.failures == []
    assert "no job failed" in failure_report(console, ARGV, {}, 10)
    assert summary(console, "results", "page.html").startswith("Made 1 step in 0:0")


def test_the_summary_points_at_the_report_where_one_was_made() -> None:
    console = Console(io.StringIO())
    for jobid, rule in enumerate(("run", "report")):
        started(console, jobid, rule)
        console.handle(record("job_finished", job_id=jobid))
    assert "The report is r/page.html" in summary(console, "r", "r/page.html")


def test_progress_is_one_line_now_and_then() -> None:
    stream = io.StringIO()
    console = Console(stream)
    started(console, 1, "features")
    for done in range(1, 10_001):
        console.handle(record("progress", done=done, total=10_000))
    *_, last = stream.getvalue().splitlines()
    assert len(stream.getvalue().splitlines()) <= 2
    assert last == "10,000 of 10,000 steps (100 %) in 0:00; at work: features ×1"


def test_only_what_every_small_run_brings_is_noise() -> None:
    assert is_noise(record("job_finished"))
    assert is_noise(logging.makeLogRecord({"msg": "Select jobs to execute..."}))
    assert not is_noise(record("job_error"))
    assert not is_noise(logging.makeLogRecord({"msg": "Building DAG of jobs..."}))


@pytest.mark.parametrize(
    ("argv", "reported"),
    [
        (["a/bin/snakemake", "-c", "4", "all"], ["a/bin/snakemake", "-c", "4", "--", "t"]),
        (["snakemake", "--cores=4", "--keep-going"], ["snakemake", "--cores", "4", "--", "t"]),
        (
            ["x/__main__.py", "--config", "a=1", "b=2", "--jobs", "9", "--profile", "p"],
            ["snakemake", "--profile", "p", "--config", "a=1", "b=2", "--", "t"],
        ),
    ],
)
def test_a_command_keeps_what_decides_the_run(argv: list[str], reported: list[str]) -> None:
    assert command_for(argv, ["t"]) == reported


def test_a_clock_has_hours_where_it_needs_them() -> None:
    assert [clock(s) for s in (0.4, 61, 3600, 37_230)] == ["0:00", "1:01", "1:00:00", "10:20:30"]
