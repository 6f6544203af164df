"""What the terminal shows of a run of the workflow: how far it is, what failed, what came out."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from crsbench.core.errors import spare_log

SECONDS_BETWEEN = 5.0
"""Between two lines of progress, at least."""

NOISE = ("job_started", "job_finished", "progress")
"""Events of the workflow's log that come with every small run; the line of progress stands in."""

KEPT_OPTIONS = (
    *("--snakefile", "-s", "--directory", "-d", "--cores", "-c", "--configfile", "--configfiles"),
    *("--profile", "--workflow-profile", "--config", "-C"),
)
"""What a command line must keep to make one target of the same run again."""


@dataclass(frozen=True)
class Failure:
    """A job that failed: its rule and wildcards, what it should have made, and its log."""

    rule: str
    wildcards: Mapping[str, str]
    outputs: tuple[str, ...]
    log: str
    started: float
    """Seconds since the epoch; an older log is of an earlier attempt."""

    @property
    def cause(self) -> str:
        """The sentence that the job left in its log, or the last line of its traceback."""
        for log in (Path(self.log), spare_log(self.log)):
            if log.is_file() and log.stat().st_mtime >= self.started:
                lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
                said = [line.strip() for line in lines if line.strip()]
                if said and said[-1] != "done":
                    return said[-1]
        return "it left no cause; it may have been killed (memory, time limit)."

    @property
    def cell(self) -> str | None:
        """`encoder/dataset` where the job belongs to one; `encoder` where to all of one."""
        names = self.wildcards
        if "encoder" not in names:
            return None
        return "/".join(names[key] for key in ("encoder", "dataset") if key in names)


class Console(logging.Handler):
    """Follows the workflow's log: writes the line of progress and gathers what failed.

    Each record carries its `event` and the event's fields as attributes, as Snakemake's do.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._started = self._written = time.monotonic()
        self._running: dict[int, logging.LogRecord] = {}
        self._failures: dict[int, Failure] = {}
        self.finished: Counter[str] = Counter()
        """Finished jobs by rule."""

    @property
    def failures(self) -> list[Failure]:
        """Failed jobs, without those that a later attempt fixed, in the order of their targets."""
        return sorted(self._failures.values(), key=lambda failure: (failure.rule, failure.outputs))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of a record; called by `logging` under the handler's lock."""
        match str(getattr(record, "event", "")):
            case "job_info":
                self._running[record.jobid] = record
                self._failures.pop(record.jobid, None)
            case "job_finished" if record.job_id in self._running:
                self.finished[self._running.pop(record.job_id).rule_name] += 1
            case "job_error":
                start = self._running.pop(record.jobid, record)
                self._failures[record.jobid] = Failure(
                    record.rule_name,
                    dict(getattr(start, "wildcards", {})),
                    tuple(record.output),
                    next(iter(record.log), ""),
                    start.created,
                )
            case "progress":
                self._show(record.done, record.total)

    def _show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._written < SECONDS_BETWEEN and done < total:
            return
        self._written = now
        at_work = Counter(record.rule_name for record in self._running.values())
        names = ", ".join(f"{rule} ×{count}" for rule, count in sorted(at_work.items()))
        share = f"{done:,} of {total:,} steps ({100 * done // total} %) in {clock(self.seconds)}"
        print(f"{share}; at work: {names}" if names else share, file=self._stream, flush=True)


def is_noise(record: logging.LogRecord) -> bool:
    """Whether a record is one that every small run brings."""
    return str(getattr(record, "event", "")) in NOISE or record.msg == "Select jobs to execute..."


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def failure_report(
    console: Console, argv: Sequence[str], without: Mapping[str, str], steps: int
) -> str:
    """One table of what failed and why, each with its log and the command to make it alone.

    Where cells of the panel failed it ends with the command that scores the others without them.

    argv: the run's command line; without: the cells that its config leaves out already; steps: how
    many the run should have made.
    """
    failures = console.failures
    if not failures:
        return "The run ended early; no job failed. Say the same command again to go on."
    jobs = "1 job failed" if len(failures) == 1 else f"{len(failures)} jobs failed"
    made = sum(console.finished.values())
    lines = [f"{jobs}; {made:,} of {steps:,} steps were made.", ""]
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.rule, failure.cause), []).append(failure)
    for (rule, cause), group in alike.items():
        first, more = group[0], len(group) - 1
        target = next(iter(first.outputs), rule)
        lines += [
            f"  target  {target}{f' (and {more} more of the same cause)' if more else ''}",
            f"  cause   {cause}",
            f"  log     {first.log or 'none'}",
            f"  alone   {shlex.join(command_for(argv, [target]))}",
            "",
        ]
    cells = {failure.cell: failure for failure in failures if failure.cell}
    if cells:
        reasons = {cell: f"{failed.rule} failed: {failed.cause}" for cell, failed in cells.items()}
        setting = f"without={json.dumps({**without, **reasons}, ensure_ascii=False)}"
        lines += [
            "  To score the panel without these cells, which the report then names with the cause:",
            f"  {shlex.join(command_for(argv, [], setting))}",
            "",
        ]
    return "\n".join(lines)


def command_for(argv: Sequence[str], targets: Sequence[str], setting: str = "") -> list[str]:
    """The command line `argv` of a run for other targets, with one more value of the config."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in argv[1:]:
        if word == "--":
            break
        if word.startswith("-"):
            name, given, value = word.partition("=")
            options[name] = [value] if given else []
        elif name:
            options[name].append(word)
    command = [argv[0] if Path(argv[0]).name == "snakemake" else "snakemake"]
    settings = options.pop("--config", []) + options.pop("-C", [])
    for name, values in options.items():
        if name in KEPT_OPTIONS:
            command += [name, *(values if "config" in name else values[:1])]
    if setting:
        settings = [*(s for s in settings if not s.startswith("without=")), setting]
    command += ["--config", *settings] if settings else []
    return [*command, "--", *targets] if targets else command


def summary(console: Console, results: Path | str, report: Path | str) -> str:
    """One line on what a run made, where to look and what comes next."""
    made = sum(console.finished.values())
    steps = "1 step" if made == 1 else f"{made:,} steps"
    start = f"Made {steps} in {clock(console.seconds)}."
    if console.finished["report"]:
        return f"{start} The report is {report}: open it in a browser; tables are in {results}."
    return (
        f"{start} What was made is in {results}; `snakemake` without a target ends in the report."
    )
