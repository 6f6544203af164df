"""Kill the workflow at random moments, start it again, and compare what it made in the end.

`trial` is one life: a working folder in which the workflow is killed a few times before it may run
to its end. Moments and victims come from a seed; what they hit depends on the machine's speed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from worlds.small_panel import DATASET, ENCODERS, SmallPanel, make, with_every_study

VICTIMS = ("all", "main", "worker")
"""Everything at once, as when a machine goes down; the main process alone, whose workers go on; one
worker, as when memory runs out."""

SECONDS_TO_START = 1.5
"""Before this nothing has begun, and there is nothing to kill."""


QUICK = [
    f"results/runs/{ENCODERS[1]}/{DATASET}/seed{seed}/{condition}/frac{percent}.json"
    for seed in (0, 1)
    for condition in ("clean", "jpeg-1")
    for percent in ("010", "100")
]
"""Targets of a quick trial: some runs of one encoder."""


@dataclass(frozen=True)
class Kill:
    """seconds: of the undisturbed run; files: how many results were whole by then."""

    victim: str
    seconds: float
    files: int


@dataclass(frozen=True)
class Trial:
    """One life; seed: of its moments and victims.

    differing: the files that differ from those of the undisturbed run, or that only one of both
    has; empty when the trial was passed.
    """

    seed: int
    kills: Sequence[Kill]
    differing: Sequence[str]


@dataclass(frozen=True)
class Undisturbed:
    """What the workflow makes when nothing happens to it, in how many seconds, and each file when.

    times: (seconds from the start, file), ascending.
    """

    made: dict[str, bytes]
    seconds: float
    times: list[tuple[float, str]]


def undisturbed(folder: Path, *targets: str) -> Undisturbed:
    panel = with_every_study(make(folder))
    begun = time.time()
    panel.finish("--quiet", "rules", "--", *targets)
    seconds, made = time.time() - begun, panel.made()
    times = sorted(((panel.results / name).stat().st_mtime - begun, name) for name in made)
    return Undisturbed(made, seconds, times)


def trial(folder: Path, seed: int, kills: int, wanted: Undisturbed, *targets: str) -> Trial:
    """Kill the workflow so many times on its way, let it end, and compare.

    A moment is one of the undisturbed run: so long after the last file that was there by then, or,
    where that file is there already, after the start. So all of the workflow is met, however slow
    the machine is. The folder is deleted, unless something differs.
    """
    chance = random.Random(seed)
    panel = with_every_study(make(folder))
    moments = sorted(chance.uniform(0, wanted.seconds) for _ in range(kills))
    happened = []
    for moment in moments:
        after, name = max((t for t in wanted.times if t[0] <= moment), default=(0.0, None))
        file = None if name is None else panel.results / name
        victim = _killed(panel, chance, file, moment - after, *targets)
        if victim is not None:
            happened.append(Kill(victim, round(moment, 2), len(panel.made())))
    panel.finish("--quiet", "rules", "--", *targets)
    _wait_for_orphans(folder)
    made = panel.made()
    names = sorted(made.keys() | wanted.made.keys())
    differing = [name for name in names if made.get(name) != wanted.made.get(name)]
    if not differing:
        shutil.rmtree(folder)
    return Trial(seed, happened, differing)


def _killed(
    panel: SmallPanel, chance: random.Random, file: Path | None, seconds: float, *targets: str
) -> str | None:
    """Start the workflow, kill a victim so long after a file; None if it had ended by itself."""
    victim = chance.choice(VICTIMS)
    there = file is None or file.exists()
    process = panel.start("--quiet", "rules", "--", *targets)
    deadline = time.monotonic() + seconds + SECONDS_TO_START if there else None
    while deadline is None or time.monotonic() < deadline:
        if process.poll() is not None:
            return None
        if deadline is None and file.exists():
            deadline = time.monotonic() + seconds
        time.sleep(0.02)
    workers = _descendants(process.pid)
    if victim == "worker" and workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
        process.wait(300)  # the main process sees it and ends by itself, with an error
    elif victim == "main":
        os.kill(process.pid, signal.SIGKILL)
    else:
        victim = "all"
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(300)
    if victim != "worker":
        panel.finish("--unlock")
    return victim


def _descendants(pid: int) -> list[int]:
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _wait_for_orphans(folder: Path) -> None:
    """Workers that outlived their main process work in the same folder and end by themselves."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if not any(_works_in(process, folder) for process in psutil.process_iter()):
            return
        time.sleep(0.1)
    raise AssertionError(f"a worker of {folder} did not end")


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and Path(process.cwd()) == folder
    except (psutil.Error, OSError):
        return False
