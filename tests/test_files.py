"""Files are whole or absent: half-written, damaged, by two writers, on a full or closed disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crsbench.errors import UserError, told_in_one_sentence
from crsbench.features.store import FeatureWriter, read_features
from crsbench.files import read_json, read_table, whole_or_absent, write_json, write_table


def test_two_writers_of_one_file_never_mix(tmp_path: Path) -> None:
    """A worker that survives the kill of the main process meets the one that replaces it."""
    file = tmp_path / "a.txt"
    with whole_or_absent(file) as part, part.open("w") as orphan:
        orphan.write("orphan, first half; ")
        with whole_or_absent(file) as newer:
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
def test_a_disk_that_refuses_is_told_in_one_sentence(tmp_path: Path, number: int) -> None:
    reason = os.strerror(number)
    with pytest.raises(UserError, match=f"a.txt cannot be written: {reason}; mend that and rerun"):  # noqa: SIM117
        with whole_or_absent(tmp_path / "a.txt"):
            raise OSError(number, reason)
    # What the body could not read is not about this file.
    with pytest.raises(PermissionError), whole_or_absent(tmp_path / "a.txt"):
        raise PermissionError(errno.EACCES, "no", "/elsewhere/image.png")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_place_of_a_folder_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(UserError, match=r"tables/a\.json cannot be written: Not a directory"):
        write_json(tmp_path / "results/tables/a.json", {})


def test_the_sentence_is_told_where_the_log_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("")
    with (
        pytest.raises(SystemExit, match="crsbench: the disk is full"),
        told_in_one_sentence(str(tmp_path / "logs/a.log")),
    ):
        raise UserError("the disk is full")


def write_features(file: Path, images: int, width: int = 8) -> np.ndarray:
    matrix = np.random.default_rng(0).normal(size=(images, width)).astype(np.float32)
    with FeatureWriter(file, {"weights_sha256": None}) as writer:
        for number, row in enumerate(matrix):
            writer.append(f"i{number:05d}", row)
    return matrix


@pytest.mark.parametrize("images", [1, 1024, 2500])
def test_features_come_back_and_carry_the_checksum_of_their_batches(
    tmp_path: Path, images: int
) -> None:
    matrix = write_features(tmp_path / "a.arrow", images)
    assert np.array_equal(read_features(tmp_path / "a.arrow").matrix, matrix)
    ids = "\n".join(f"i{number:05d}" for number in range(min(images, 1024)))
    checksum = zlib.crc32(matrix[:1024].tobytes(), zlib.crc32(ids.encode()))
    assert b"%08x" % checksum in (tmp_path / "a.arrow").read_bytes()


def test_a_feature_file_of_which_any_byte_changed_or_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.arrow"
    matrix = write_features(file, 40)
    whole = file.read_bytes()
    body = whole.index(matrix[0].tobytes())
    for place in (body, body + 4 * 8 * 40 - 1, whole.index(b"i00000")):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"a\.arrow is (no whole feature file|not sorted)"):
            read_features(file)
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.arrow is no whole feature file"):
            read_features(file)


def test_a_table_of_which_a_byte_changed_or_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    values = np.random.default_rng(0).normal(size=5000)
    write_table(file, pd.DataFrame({"x": values}), {"key": 1})
    frame, metadata = read_table(file)
    assert np.array_equal(frame["x"], values)
    assert metadata == {"key": 1}
    whole = file.read_bytes()
    for place in range(1000, 39000, 3803):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"a\.parquet is no readable Parquet file"):
            read_table(file)
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.parquet is no readable Parquet file"):
            read_table(file)


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\0" * 20, b"[1]", b'{"a": 1}\0\0'])
def test_a_half_written_json_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json .*; delete it and rerun"):
        read_json(tmp_path / "a.json")


def test_a_writer_that_is_killed_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from crsbench.files import whole_or_absent\n"
        "with whole_or_absent(sys.argv[1]) as part:\n"
        "    part.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert ended.returncode == -9
    assert not (tmp_path / "a").exists()
    with whole_or_absent(tmp_path / "a") as part:
        part.write_text("whole")
    assert os.listdir(tmp_path) == ["a"]
