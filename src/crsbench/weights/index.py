"""The index of a safetensors model that lies in several files (shards)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from crsbench.core.errors import UserError


def shard_of_tensor(index: Path) -> dict[str, str]:
    """By a tensor's name the shard that holds it; raises UserError when the file is no index."""
    try:
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of safetensors shards ({error!r}).") from error


def shards_of(index: Path, prefixes: Sequence[str]) -> list[str]:
    """The names of the shards that hold a tensor below one of the prefixes.

    Raises UserError when the file is no such index.
    """
    shards = shard_of_tensor(index).items()
    return sorted({shard for name, shard in shards if name.startswith(tuple(prefixes))})
