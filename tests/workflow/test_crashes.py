"""The workflow is killed at random moments and ends in the same bytes.

A quick part of `benchmarks/crashes.py`, which kills thirty times.
"""

from __future__ import annotations

from pathlib import Path

from worlds.kills import QUICK, trial, undisturbed


def test_random_kills_change_no_byte(tmp_path: Path) -> None:
    wanted = undisturbed(tmp_path / "undisturbed", *QUICK)
    life = trial(tmp_path / "life", 7, 2, wanted, *QUICK)
    assert life.kills
    assert life.differing == []
