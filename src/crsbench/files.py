"""Files that are whole or absent: written under a temporary name, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.errors import UserError


@contextmanager
def whole_or_absent(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success sync it and rename it to `path`.

    The temporary name is fixed, so that what a killed job left is overwritten by the next one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
        pq.write_table(table, part, compression="zstd")


def read_table(path: Path | str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a table written by `write_table`, with its metadata."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
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
