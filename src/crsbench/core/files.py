"""Files that appear complete or not at all: written under a temporary name, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.core.errors import UserError

CHECKSUM_MARK = b"crsbench-crc32:"
"""What stands in a file before its checksum."""

BLANK_CHECKSUM = CHECKSUM_MARK + b"0" * 8
"""What a writer puts anywhere into a file, once, for `checksummed` to fill in."""

UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.ENAMETOOLONG),
)
"""What a disk answers that is full, or a folder that can't be written to."""


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success sync it and rename it to `path`.

    Every writer has a temporary name of its own, so that two of one file (a worker that outlived
    its killed main process, and its successor) never mix; it holds a lock on it, so that what a
    killed writer left differs from work in progress, and the next one deletes it. Raises UserError
    when the disk is full or the folder can't be written to.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(path)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("wb") as claim:
                _lock(claim)
                yield part
                os.fsync(claim.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno not in UNWRITABLE or not _beside(error.filename, path):
            raise
        raise UserError(
            f"{path} cannot be written: {os.strerror(error.errno)}; fix that and rerun."
        ) from error


def _delete_abandoned(path: Path) -> None:
    """Delete what killed writers of `path` left: temporary files that nobody holds a lock on."""
    start = f".{path.name}."
    with os.scandir(path.parent) as entries:
        parts = [e.path for e in entries if e.name.startswith(start) and e.name.endswith(".part")]
    for part in parts:
        with suppress(FileNotFoundError), open(part, "rb") as left:
            if _lock(left):
                Path(part).unlink()


def _lock(file: IO[bytes]) -> bool:
    """Whether this process could get the lock, for as long as the file is open here.

    It could not where another holds it, nor on a file system without locks: there what killed
    writers left stays.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _beside(failed: str | bytes | None, path: Path) -> bool:
    """Whether an error is about the folder of `path`; one without a file name is about its file."""
    if failed is None:
        return True
    folder = Path(os.fsdecode(failed))
    return path.parent in (folder, folder.parent) or folder in path.parents


def checksummed(content: bytes) -> bytes:
    """The content of a file with the CRC-32 of all else in it in place of its blank checksum."""
    before, after = _around_checksum(content)
    return b"".join([before, _crc32(before, after), after])


def add_checksum(file: Path) -> None:
    """The same for a file that is too large to hold in memory."""
    with file.open("r+b") as handle:
        with mmap(handle.fileno(), 0, access=ACCESS_READ) as content:
            before, after = _around_checksum(content)
            place, digits = len(before), _crc32(before, after)
            before.release()
            after.release()
        handle.seek(place)
        handle.write(digits)


def verify_checksum(content: bytes | mmap) -> None:
    """Raise ValueError unless each byte is as it was when the checksum was added.

    The formats' own checksums leave their headers and metadata open, or don't exist; and pyarrow
    does not survive every header.
    """
    before, after = _around_checksum(content)
    whole = content[len(before) : len(before) + 8] == _crc32(before, after)
    before.release()  # or a map could not be closed
    after.release()
    if not whole:
        raise ValueError("its checksum does not fit")


def read_checksummed(path: Path | str) -> bytes:
    """Read a file with a checksum; UserError naming it when any byte is not as it was written."""
    try:
        content = Path(path).read_bytes()
        verify_checksum(content)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    return content


def _around_checksum(content: bytes | mmap) -> tuple[memoryview, memoryview]:
    """What stands before and after the digits of the last checksum."""
    place = content.rfind(CHECKSUM_MARK) + len(CHECKSUM_MARK)
    if place < len(CHECKSUM_MARK) or len(content) <= place + 8:
        raise ValueError("it has no checksum")
    whole = memoryview(content)
    return whole[:place], whole[place + 8 :]


def _crc32(before: memoryview, after: memoryview) -> bytes:
    return b"%08x" % zlib.crc32(after, zlib.crc32(before))


def damaged(path: Path | str, reason: object) -> UserError:
    """What to raise of a file of our own that is missing or not as it was written."""
    if isinstance(reason, FileNotFoundError):
        return UserError(f"{path} is missing; make it with: snakemake --cores all -- {path}")
    return UserError(f"{path} is not whole ({reason}); delete it and rerun.")


def write_json(path: Path | str, content: Mapping[str, Any]) -> None:
    """Write strict JSON (no NaN literals) with sorted keys, in one line; its last key is "seal"."""
    text = json.dumps(content, allow_nan=False, sort_keys=True, ensure_ascii=False)
    start = text[:-1] + (", " if content else "")
    with atomic_write(path) as part:
        part.write_bytes(checksummed(b'%s"seal": "%s"}\n' % (start.encode(), BLANK_CHECKSUM)))


def read_json(path: Path | str) -> dict[str, Any]:
    """Read a JSON object of `write_json`; raises UserError naming the file when it is not whole."""
    try:
        content: dict[str, Any] = json.loads(read_checksummed(path))
        del content["seal"]
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(path, "it is no JSON object") from error
    return content


def write_table(
    path: Path | str,
    frame: pd.DataFrame,
    metadata: Mapping[str, Any] | None = None,
    noisy: Sequence[str] = (),
) -> None:
    """Write a Parquet table; `metadata` goes into the schema as JSON under the key `crsbench`.

    noisy: columns of floats that hardly any two rows share: only their leading bytes compress.
    """
    table = pa.Table.from_pandas(frame, preserve_index=False)
    known = {**(table.schema.metadata or {}), b"seal": BLANK_CHECKSUM}
    if metadata is not None:
        known[b"crsbench"] = json.dumps(metadata, allow_nan=False, sort_keys=True).encode()
    content = BytesIO()
    table = table.replace_schema_metadata(known)
    others = [name for name in table.column_names if name not in noisy]
    coding = {"use_dictionary": others, "use_byte_stream_split": list(noisy)} if noisy else {}
    pq.write_table(table, content, compression="zstd", **coding)
    with atomic_write(path) as part:
        part.write_bytes(checksummed(content.getvalue()))


def read_table(
    path: Path | str, columns: Sequence[str] | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a table written by `write_table`, or some of its columns, with its metadata.

    Raises UserError naming the file when it is not whole.
    """
    try:
        table = pq.read_table(BytesIO(read_checksummed(path)), columns=columns)
    except pa.ArrowException as error:
        raise damaged(path, "it is no table") from error
    metadata = table.schema.metadata.get(b"crsbench", b"{}")
    return table.to_pandas(), json.loads(metadata)


def write_arrays(path: Path | str, **arrays: np.ndarray) -> None:
    """Write arrays as an npz, without pickle: equal content gives equal bytes.

    Raises ValueError for an array of Python objects.
    """
    content = BytesIO()
    np.savez(content, allow_pickle=False, **arrays)  # which stamps every member with 1980-01-01
    with ZipFile(content, "a") as archive:
        archive.comment = BLANK_CHECKSUM + b"\n"
    with atomic_write(path) as part:
        part.write_bytes(checksummed(content.getvalue()))


def read_arrays(path: Path | str) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote; UserError naming the file when it is not whole."""
    try:
        with np.load(BytesIO(read_checksummed(path)), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, TypeError) as error:
        raise damaged(path, "it is no npz") from error
