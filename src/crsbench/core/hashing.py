"""Digests of files, and numbers from the digests of names."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path


def checksum(text: str) -> str:
    """The CRC-32 of a line, as eight hexadecimal digits."""
    return f"{zlib.crc32(text.encode()):08x}"


def sha256_of_file(path: Path | str) -> str:
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_number(*parts: object) -> int:
    """A 64-bit number from the SHA-256 of the parts' text, joined by the unit separator."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
