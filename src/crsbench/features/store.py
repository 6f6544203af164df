"""The feature store: one memory-mapped Arrow IPC file per encoder × data set × condition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from crsbench.core.errors import UserError
from crsbench.core.files import BLANK_CHECKSUM, add_checksum, atomic_write, damaged, verify_checksum

ROWS_PER_BATCH = 1024


@dataclass(frozen=True)
class Features:
    """A mapped feature file of n images.

    image_ids: (n,) str, ascending; batches: (rows, width) float32 each, read-only, in this order,
    on the pages of the file itself.
    """

    image_ids: np.ndarray
    batches: tuple[np.ndarray, ...]
    metadata: Mapping[str, Any]

    @property
    def matrix(self) -> np.ndarray:
        """(n, width) float32, read-only; a copy where there are several batches."""
        if len(self.batches) == 1:
            return self.batches[0]
        matrix = np.concatenate(self.batches)
        matrix.setflags(write=False)
        return matrix

    @property
    def n_bytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def positions(self, image_ids: np.ndarray, source: Path | str) -> np.ndarray:
        """Where the given images stand; UserError names one that is absent."""
        if np.array_equal(image_ids, self.image_ids):
            return np.arange(len(image_ids))
        at = np.searchsorted(self.image_ids, image_ids).clip(max=len(self.image_ids) - 1)
        absent = self.image_ids[at] != image_ids
        if absent.any():
            raise UserError(
                f"{source} lacks the image '{image_ids[absent][0]}' ({int(absent.sum())} of "
                f"{len(image_ids)} are absent); delete it and rerun."
            )
        return at

    def take(self, at: np.ndarray) -> np.ndarray:
        """(m, width) float32: the images at the given positions, in their order."""
        if len(self.batches) == 1:
            return self.batches[0][at]
        ends = np.cumsum([len(batch) for batch in self.batches])
        of_batch = np.searchsorted(ends, at, side="right")
        taken = np.empty((len(at), self.batches[0].shape[1]), np.float32)
        for number in np.unique(of_batch):
            wanted = of_batch == number
            start = ends[number] - len(self.batches[number])
            taken[wanted] = self.batches[number][at[wanted] - start]
        return taken

    def rows(self, image_ids: np.ndarray, source: Path | str) -> np.ndarray:
        """The matrix of the given images, in their order; UserError names one that is absent."""
        return self.take(self.positions(image_ids, source))


class FeatureWriter:
    """Writes a feature file row by row, in batches; the file appears when the writer closes."""

    def __init__(self, path: Path | str, metadata: Mapping[str, Any]) -> None:
        self._path = path
        self._metadata = json.dumps(metadata, allow_nan=False, sort_keys=True)
        self._ids: list[str] = []
        self._rows: list[np.ndarray] = []
        self._sink: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._part = self._stack.enter_context(atomic_write(self._path))
        return self

    def append(self, image_id: str, row: np.ndarray) -> None:
        self._ids.append(image_id)
        self._rows.append(row)
        if len(self._rows) == ROWS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        values = np.stack(self._rows).astype(np.float32, copy=False)
        schema = pa.schema(
            [("image_id", pa.string()), ("features", pa.list_(pa.float32(), values.shape[1]))],
            metadata={b"crsbench": self._metadata.encode(), b"seal": BLANK_CHECKSUM},
        )
        if self._sink is None:
            self._sink = pa.ipc.new_file(str(self._part), schema)
        columns = [
            pa.array(self._ids, pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1]),
        ]
        self._sink.write_batch(pa.record_batch(columns, schema=schema))
        self._ids, self._rows = [], []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if error is not None:
                raise error  # through the stack, so that no file is left
            if self._rows:
                self._flush()
            if self._sink is not None:
                self._sink.close()
                add_checksum(self._part)


def read_metadata(path: Path | str) -> dict[str, Any]:
    """What made a file of features, without reading them; raises UserError as `read_features`."""
    try:
        with pa.OSFile(str(path)) as source:
            return json.loads(pa.ipc.open_file(source).schema.metadata[b"crsbench"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no readable feature file; delete it and rerun.") from error


def check_made_by(
    path: Path | str, metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None
) -> None:
    """Raises UserError when a feature file was made by other settings than `wanted`.

    wanted: as in `ExtractionSettings.made_by`; None: whatever made it is right.
    """
    found = metadata.get("made_by")
    if wanted is None or found == wanted:
        return
    key, found, wanted = _difference("", found, wanted)
    raise UserError(
        f"{path} was made with {key or 'settings'} {json.dumps(found)}, the run wants "
        f"{json.dumps(wanted)}; make it again with `--forcerun {path}`."
    )


def _difference(key: str, found: Any, wanted: Any) -> tuple[str, Any, Any]:
    """The innermost key, joined by dots, in which two mappings first differ, and both values."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                inner = f"{key}.{name}" if key else name
                return _difference(inner, found.get(name), wanted.get(name))
    return key, found, wanted


def read_features(path: Path | str, made_by: Mapping[str, Any] | None = None) -> Features:
    """Map a feature file; raises UserError naming it when it is not whole, changed or not sorted.

    Or when it was made by other settings than `made_by` (`check_made_by`). A gigabyte takes a third
    of a second.
    """
    try:
        with Path(path).open("rb") as handle, mmap(handle.fileno(), 0, access=ACCESS_READ) as whole:
            verify_checksum(whole)
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        metadata = json.loads(table.schema.metadata[b"crsbench"])
        column = table.column("features")
        width = column.type.list_size
        chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error
    ids = table.column("image_id").to_numpy().astype(str)
    if not (ids[:-1] < ids[1:]).all():
        raise UserError(f"{path} is not sorted by image id; delete it and rerun.")
    batches = tuple(values.reshape(-1, width) for values in chunks)
    for batch in batches:
        batch.setflags(write=False)
    check_made_by(path, metadata, made_by)
    return Features(ids, batches, metadata)
