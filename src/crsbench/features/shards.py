"""Shards: the part of an extraction that is already there when a job was killed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from crsbench.core.errors import UserError
from crsbench.core.files import read_arrays, write_arrays
from crsbench.features.store import FeatureWriter

SHARD_IMAGES = 512
"""How many images a killed extraction loses at most; with 16 views of 1,152 numbers 38 MB."""


class ShardedFeatures:
    """The features of one encoder in one job: kept shard by shard, written as whole files.

    The shards lie in a hidden folder beside the first output, under a hash of all that made them:
    those of other weights, images or settings are removed, never used. Rows are in the order of
    `image_ids`, and of the image's own conditions within one.
    """

    def __init__(
        self,
        outputs: Mapping[str, Path],
        image_ids: Sequence[str],
        conditions: Sequence[Sequence[str]],
        made_by: Mapping[str, Any],
    ) -> None:
        self._outputs = outputs
        self._image_ids = image_ids
        self._conditions = conditions
        content = [list(image_ids), [list(names) for names in conditions], made_by]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        first = next(iter(outputs.values()))
        self._root = first.with_name(f".{first.stem}.shards")
        self._folder = self._root / digest[:32]
        for other in self._root.glob("*"):
            if other != self._folder:
                shutil.rmtree(other)

    @property
    def shards(self) -> list[range]:
        """The images of each shard, by their index."""
        count = len(self._image_ids)
        starts = range(0, count, SHARD_IMAGES)
        return [range(start, min(start + SHARD_IMAGES, count)) for start in starts]

    def __contains__(self, shard: range) -> bool:
        """Whether a shard is there, whole."""
        try:
            return len(self._rows(shard)) == sum(len(self._conditions[index]) for index in shard)
        except UserError:
            return False

    def keep(self, shard: range, rows: np.ndarray) -> None:
        """rows: (views, width) float32."""
        write_arrays(self._file(shard), rows=rows)

    def write(self, metadata: Mapping[str, Any]) -> None:
        """Write each condition's file from the shards, then remove these."""
        with ExitStack() as stack:
            writers = {
                condition: stack.enter_context(
                    FeatureWriter(path, {**metadata, "condition": condition})
                )
                for condition, path in self._outputs.items()
            }
            for shard in self.shards:
                names = [(index, name) for index in shard for name in self._conditions[index]]
                for (index, name), row in zip(names, self._rows(shard), strict=True):
                    writers[name].append(self._image_ids[index], row)
        shutil.rmtree(self._root, ignore_errors=True)

    def _file(self, shard: range) -> Path:
        return self._folder / f"{shard.start:08d}.npz"

    def _rows(self, shard: range) -> np.ndarray:
        return read_arrays(self._file(shard))["rows"]
