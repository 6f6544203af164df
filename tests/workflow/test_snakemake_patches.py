"""Two private places of Snakemake are patched, where they have the form that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from worlds.small_panel import DATASET, make

pytestmark = pytest.mark.workflow

TARGET = f"results/data/{DATASET}/phantoms/table.csv"

REPORT_AT_EXIT = """
import atexit, snakemake.jobs, snakemake.scheduling.job_scheduler as scheduling

search, limiter = snakemake.jobs.Job.is_pipe_or_service_input, scheduling.JobRateLimiter
schedulers, begin = [], scheduling.JobScheduler.__init__

def begin_and_note(self, *arguments, **options):
    begin(self, *arguments, **options)
    schedulers.append(self)

scheduling.JobScheduler.__init__ = begin_and_note

@atexit.register
def report():
    for scheduler in schedulers:
        print("search patched:", snakemake.jobs.Job.is_pipe_or_service_input is not search)
        print("limiter patched:", scheduler.job_rate_limiter is None)
"""
"""What runs before Snakemake does; at the end it prints what was patched."""

OF_ANOTHER_VERSION = """
search = lambda self, path, more=None: False
snakemake.jobs.Job.is_pipe_or_service_input = search

class Limiter(limiter):
    def __init__(self, limit, more=None):
        super().__init__(limit)

scheduling.JobRateLimiter = Limiter
"""


@pytest.mark.parametrize("known", [True, False])
def test_a_place_is_patched_where_it_has_the_known_form_and_else_the_run_says_so(
    known: bool, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    change = "" if known else OF_ANOTHER_VERSION
    (tmp_path / "before/sitecustomize.py").write_text(REPORT_AT_EXIT + change, "utf-8")
    panel = make(tmp_path / "panel", PYTHONPATH=str(tmp_path / "before"))
    printed = panel.finish("--", TARGET)
    for place, name in (("search", "search for pipes"), ("limiter", "rate limiter")):
        assert f"{place} patched: {known}" in printed
        assert (f"crsbench: the {name} of Snakemake" in printed) != known
    assert (panel.folder / TARGET).is_file()


def test_to_touch_files_there_is_no_limiter_and_no_word_of_one(tmp_path: Path) -> None:
    panel = make(tmp_path / "panel")
    panel.finish("--", TARGET)
    assert "crsbench: the" not in panel.finish("--touch", "--forcerun", "phantoms", "--", TARGET)
