"""Files appear complete or not at all: damage, two writers, a full or closed disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from crsbench.core.errors import UserError, user_error_boundary
from crsbench.core.files import atomic_write, read_json, read_table, write_json, write_table
from crsbench.features.store import FeatureWriter, read_features
from crsbench.probes import FittedProbe
from crsbench.studies.base import read_figure, write_study
from crsbench.studies.registry import not_run


def test_two_writers_of_one_file_never_mix(tmp_path: Path) -> None:
    """A worker that survives the kill of the main process meets the one that replaces it."""
    file = tmp_path / "a.txt"
    with atomic_write(file) as part, part.open("w") as orphan:
        orphan.write("orphan, first half; ")
        with atomic_write(file) as newer:
            newer.write_text("the successor")
            orphan.write("second half")
        assert file.read_text() == "the successor"
    assert file.read_text() == "orphan, first half; second half"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    (tmp_path / ".a.json.0badcafe.part").write_text('{"half')
    (tmp_path / ".ab.json.0badcafe.part").write_text("of another file")
    write_json(tmp_path / "a.json", {"x": 1})
    assert sorted(os.listdir(tmp_path)) == [".ab.json.0badcafe.part", "a.json"]


def test_an_error_leaves_the_older_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="not JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_reported_in_one_sentence(tmp_path: Path, number: int) -> None:
    reason = os.strerror(number)
    with pytest.raises(UserError, match=f"a.txt cannot be written: {reason}; fix that and rerun"):  # noqa: SIM117
        with atomic_write(tmp_path / "a.txt"):
            raise OSError(number, reason)
    # What the body could not read is not about this file.
    with pytest.raises(PermissionError), atomic_write(tmp_path / "a.txt"):
        raise PermissionError(errno.EACCES, "no", "/elsewhere/image.png")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_place_of_a_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(UserError, match=r"tables/a\.json cannot be written: Not a directory"):
        write_json(tmp_path / "results/tables/a.json", {})


def test_the_sentence_is_reported_where_the_log_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("")
    with (
        pytest.raises(SystemExit, match="crsbench: the disk is full"),
        user_error_boundary(str(tmp_path / "logs/a.log")),
    ):
        raise UserError("the disk is full")


def write_features(file: Path, images: int, width: int = 8) -> np.ndarray:
    matrix = np.random.default_rng(0).normal(size=(images, width)).astype(np.float32)
    with FeatureWriter(file, {"weights_sha256": None}) as writer:
        for number, row in enumerate(matrix):
            writer.append(f"i{number:05d}", row)
    return matrix


@pytest.mark.parametrize("images", [1, 1024, 2500])
def test_features_come_back_and_carry_a_checksum_of_the_whole_file(
    tmp_path: Path, images: int
) -> None:
    matrix = write_features(tmp_path / "a.arrow", images)
    assert np.array_equal(read_features(tmp_path / "a.arrow").matrix, matrix)
    before, mark, after = (tmp_path / "a.arrow").read_bytes().rpartition(b"crsbench-crc32:")
    assert after[:8] == b"%08x" % zlib.crc32(after[8:], zlib.crc32(before + mark))


def same(read: Any, written: Any) -> bool:
    """Whether two things that were read are the same to the last bit."""
    if isinstance(written, pd.DataFrame):
        return read.equals(written) and list(read.dtypes) == list(written.dtypes)
    if isinstance(written, np.ndarray):
        return read.dtype == written.dtype and read.tobytes() == written.tobytes()
    if isinstance(written, tuple | list):
        return len(read) == len(written) and all(map(same, read, written))
    if is_dataclass(written):
        return same(list(vars(read).values()), list(vars(written).values()))
    return type(read) is type(written) and read == written


FRAME = pd.DataFrame({"name": ["a", "b"], "labels": [[0, 1], [1, 0]], "x": [0.1, float("nan")]})

PROBE = FittedProbe(
    task="multiclass",
    coef_=np.arange(6.0).reshape(2, 3),
    intercept_=np.array([0.5, -0.5]),
    c_=np.array([0.1]),
    c_grid_=np.array([0.1, 1.0]),
    oof_log_loss_=np.array([[0.7, np.nan]]),
    folds_=np.array([5]),
    n_train_=20,
    n_iter_=np.array([7]),
    gradient_norm_=np.array([1e-9]),
    objective_=np.array([1.5]),
    converged_=np.array([True]),
    capped_=False,
    floor_classes_=np.empty(0, dtype=np.int64),
    floor_probabilities_=np.empty(0),
)

FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "json": (lambda file: write_json(file, {"ä": [0.1, None], "b": {}}), read_json),
    "empty json": (lambda file: write_json(file, {}), read_json),
    "table": (lambda file: write_table(file, FRAME, {"sentence": "It is."}), read_table),
    "features": (lambda file: write_features(file, 3, 2), read_features),
    "figure": (
        lambda file: write_study(file.with_name("t"), file, "s", not_run("no")),
        read_figure,
    ),
    "probe": (lambda file: PROBE.save(file), FittedProbe.load),
}
"""Of every format that a later step reads: how it is written, and read."""


@pytest.mark.parametrize("kind", FORMATS)
def test_no_changed_byte_is_ever_taken_for_whole(tmp_path: Path, kind: str) -> None:
    """Whichever bit changes, and wherever a file is cut off: a UserError, or the same content."""
    write, read = FORMATS[kind]
    file = tmp_path / "a"
    write(file)
    written, whole = read(file), file.read_bytes()
    refusals = []
    places = range(0, len(whole), 1 + len(whole) // 1500)
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        try:
            found = read(file)
        except UserError as error:
            refusals.append(str(error))
        else:
            assert same(found, written), (place, whole[place - 20 : place + 20])
    assert len(refusals) > 0.7 * len(places)
    assert all(
        f"{file} is not " in reported and "; delete it and rerun." in reported
        for reported in refusals
    )
    for length in {0, 1, 3, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match="delete it and rerun"):
            read(file)


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\0" * 20, b"[1]", b'{"a": 1}\0\0'])
def test_a_half_written_json_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json .*; delete it and rerun"):
        read_json(tmp_path / "a.json")


def test_a_writer_that_is_killed_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from crsbench.core.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as part:\n"
        "    part.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert ended.returncode == -9
    assert not (tmp_path / "a").exists()
    with atomic_write(tmp_path / "a") as part:
        part.write_text("whole")
    assert os.listdir(tmp_path) == ["a"]
