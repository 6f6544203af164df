"""Thirty random kills: does the workflow always end in the same bytes?

    python benchmarks/crashes.py [--quick] [--kills N] [--seed N] [--folder FOLDER]

Two lives at a time, each a small panel (tests/worlds/small_panel.py: two encoders, one set of drawn
images, every study that a config may ask for, LoRA adaptation too, all the way to the report) that
is killed ten times at random moments, each time with SIGKILL: all of it, its main process alone, or
one worker. Then it may run to its end, and every
file is compared with that of an undisturbed run. With --quick one life of two kills, with a few
runs as its end. A life that differs is kept in the folder. Exits with 1 unless all is the same. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from worlds.kills import QUICK, Trial, trial, undisturbed

AT_A_TIME = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one life of a part of the workflow")
    parser.add_argument("--kills", type=int, default=30, help="kills, at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first life")
    parser.add_argument("--folder", type=Path, help="working folder (default: a temporary one)")
    arguments = parser.parse_args()
    targets, kills_a_life = (QUICK, 2) if arguments.quick else ([], 10)
    wanted_kills = 1 if arguments.quick else arguments.kills
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="crashes-"))
    begun = time.monotonic()
    undisturbed_run = undisturbed(folder / "undisturbed", *targets)
    print(f"undisturbed: {undisturbed_run.seconds:.0f} s, {len(undisturbed_run.made)} files")

    def live(seed: int) -> Trial:
        return trial(folder / f"life{seed}", seed, kills_a_life, undisturbed_run, *targets)

    lives: list[Trial] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while (missing := wanted_kills - sum(len(life.kills) for life in lives)) > 0:
            start = arguments.seed + len(lives)
            for life in pool.map(live, range(start, start + -(-missing // kills_a_life))):
                print(life, flush=True)
                lives.append(life)
    differing = sorted({name for life in lives for name in life.differing})
    kills = [kill for life in lives for kill in life.kills]
    print(
        json.dumps(
            {
                "lives": len(lives),
                "kills": len(kills),
                "victims": dict(Counter(kill.victim for kill in kills)),
                "files": len(undisturbed_run.made),
                "lives_with_the_same_bytes": sum(not life.differing for life in lives),
                "differing": differing,
                "undisturbed_seconds": round(undisturbed_run.seconds, 1),
                "seconds": round(time.monotonic() - begun, 1),
            }
        )
    )
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
