"""Files that are whole or absent: written under a temporary name, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.errors import UserError

UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.ENAMETOOLONG),
)
"""What a disk answers that is full, or a folder that can't be written to."""


@contextmanager
def whole_or_absent(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success sync it and rename it to `path`.

    Every writer has a temporary name of its own, so that two of one file (a worker that outlived
    its killed main process, and its successor) never mix; it holds a lock on it, so that what a
    killed writer left is told from work in progress, and deleted by the next. Raises UserError when
    the disk is full or the folder can't be written to.
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
            f"{path} cannot be written: {os.strerror(error.errno)}; mend that and rerun."
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


def write_json(path: Path | str, content: Mapping[str, Any]) -> None:
    """Write strict JSON (no NaN literals) with sorted keys, in one line."""
    text = json.dumps(content, allow_nan=False, sort_keys=True, ensure_ascii=False)
    with whole_or_absent(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path | str) -> dict[str, Any]:
    """Read a JSON object; raises UserError naming the file when it is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no readable JSON file ({error}); delete it and rerun."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; delete it and rerun.")
    return content


def write_table(
    path: Path | str, frame: pd.DataFrame, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write a Parquet table; `metadata` goes into the schema as JSON under the key `crsbench`."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if metadata is not None:
        text = json.dumps(metadata, allow_nan=False, sort_keys=True)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"crsbench": text})
    with whole_or_absent(path) as part:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)


def read_table(path: Path | str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a table written by `write_table`, with its metadata.

    Raises UserError naming the file when it is not whole or its checksums don't fit.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is no readable Parquet file; delete it and rerun.") from error
    metadata = (table.schema.metadata or {}).get(b"crsbench", b"{}")
    return table.to_pandas(), json.loads(metadata)


def sha256_of_file(path: Path | str) -> str:
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_number(*parts: object) -> int:
    """A 64-bit number from the SHA-256 of the parts' text, joined by the unit separator."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
