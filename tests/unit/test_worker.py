"""Work in a warm process: done there, reported as it failed, and never lost with the process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crsbench.core import worker
from crsbench.core.errors import UserError
from crsbench.core.files import read_json
from crsbench.core.worker import in_worker

WRITE = "crsbench.core.files:write_json"


def test_a_process_is_used_again_and_does_the_work(tmp_path: Path) -> None:
    in_worker(WRITE, str(tmp_path / "a.json"), {"ü": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"ü": [1, 2.5, None]}
    pids = {process.pid for process in worker._idle}
    in_worker(WRITE, str(tmp_path / "b.json"), {})
    assert {process.pid for process in worker._idle} == pids


def test_what_goes_wrong_is_raised_here_and_the_process_lives_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.json is missing"):
        in_worker("crsbench.core.files:read_json", str(tmp_path / "a.json"))
    with pytest.raises(RuntimeError, match=r"AttributeError: .*no attribute 'nothing'"):
        in_worker("crsbench.core.files:nothing")
    in_worker(WRITE, str(tmp_path / "a.json"), {})


def test_a_process_that_dies_fails_its_own_work_only(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 3; was it killed for memory"):
        in_worker("os:_exit", 3)
    in_worker(WRITE, str(tmp_path / "a.json"), {})
    for process in worker._idle:  # and one that is killed while it has nothing to do, none
        process.kill()
        process.wait()
    in_worker(WRITE, str(tmp_path / "b.json"), {})
    assert (tmp_path / "b.json").is_file()


def test_threads_have_a_process_each(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(6)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda file: in_worker(WRITE, file, {"file": file}), files))
    assert [json.loads(Path(file).read_text("utf-8"))["file"] for file in files] == files
    assert len(worker._idle) <= 2 + 1
