"""Embeddings of the user's own, in place of an encoder: their files become the feature store's."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_of_file
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import read_test
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import FeatureWriter

IDS, VECTORS = "image_id", "features"
"""Columns of an Arrow or Parquet file, or arrays of an npz file: those of the feature store."""

LIBRARIES = ("numpy", "pyarrow")
"""What a feature file made from embeddings names the versions of."""


_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def embedding_files(
    entry: EncoderEntry, weights_root: Path, dataset: str, conditions: Sequence[str]
) -> dict[str, Path]:
    """The user's file for each condition of a data set, shift targets included."""
    pattern = entry.spec["embeddings"]
    return {
        condition: weights_root / pattern.format(dataset=dataset, condition=condition)
        for condition in conditions
    }


def take_embeddings(
    settings: ExtractionSettings,
    dataset: str,
    *,
    manifest_file: Path | str,
    test_file: Path | str | None,
    outputs: Sequence[Path | str],
) -> None:
    """Write the feature files of a data set from the user's embeddings; no image is opened.

    settings: of one encoder; dataset: of the panel, whose source a shift target is tested for;
    outputs: named `{condition}.arrow`. The clean condition must hold every image of the manifest, a
    degraded one every test image; without a test file the outputs are shift targets, whose
    manifest it is. Ids beyond these are reported and left out. Raises UserError naming the file
    that is missing, unreadable or of another width than the clean one, an id that is missing or
    twice, or an image whose vector is not finite.
    """
    (entry,), weights_root = settings.encoders, settings.weights_root
    manifest = read_manifest(manifest_file)
    width = _width(embedding_files(entry, weights_root, dataset, [CLEAN])[CLEAN], entry.name)
    is_test = None if test_file is None else read_test(test_file, manifest)
    named = {Path(output).stem: Path(output) for output in outputs}
    files = embedding_files(entry, weights_root, dataset, list(named))
    for condition, file in files.items():
        whole = is_test is None or condition == CLEAN
        wanted = manifest.image_ids if whole else manifest.image_ids[is_test]
        matrix = _rows_of(file, entry.name, wanted)
        if matrix.shape[1] != width:
            raise UserError(
                f"Embeddings '{entry.name}': {file} holds vectors of {matrix.shape[1]} numbers, "
                f"the clean condition of '{dataset}' of {width}; all must have the same width."
            )
        metadata = {
            "encoder": entry.name,
            "dataset": manifest.dataset,
            "condition": CLEAN if is_test is None else condition,
            "weights_sha256": sha256_of_file(file),
            "made_by": settings.made_by[entry.name],
            "dtype": "float32",
            "versions": {name: version(name) for name in LIBRARIES},
        }
        with FeatureWriter(named[condition], metadata) as writer:
            for image_id, row in zip(wanted, matrix, strict=True):
                writer.append(image_id, row)


def _width(file: Path, encoder: str) -> int:
    return read_embeddings(file, encoder)[1].shape[1]


def _rows_of(file: Path, encoder: str, wanted: np.ndarray) -> np.ndarray:
    """(len(wanted), width) float32: the vectors of the wanted image ids, in their order."""
    ids, vectors = read_embeddings(file, encoder)
    at = pd.Index(ids).get_indexer(wanted)
    absent = wanted[at < 0]
    if len(absent):
        raise UserError(
            f"Embeddings '{encoder}': {file} lacks the image '{absent[0]}' ({len(absent)} of "
            f"{len(wanted)} are absent)."
        )
    extra = len(ids) - len(wanted)
    if extra:
        print(f"Embeddings '{encoder}': {file} holds {extra} images more than are wanted.")
    matrix = vectors[at]
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        raise UserError(
            f"Embeddings '{encoder}': {file} holds a value that is not finite for image "
            f"'{wanted[np.argmin(finite)]}'."
        )
    return matrix


def read_embeddings(file: Path, encoder: str) -> tuple[np.ndarray, np.ndarray]:
    """The image ids (n,) and vectors (n, width) float32 of a file of embeddings.

    Raises UserError naming the file when it is missing, unreadable or of another form, or when an
    id occurs twice.
    """
    if not file.is_file():
        raise UserError(
            f"Embeddings '{encoder}': the condition's file {file} does not exist; every condition "
            "needs one."
        )
    try:
        ids, vectors = (_read_npz if file.suffix == ".npz" else _read_table)(file)
    except (*_UNREADABLE, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"Embeddings '{encoder}': {file} cannot be read ({reason}); wanted are '{IDS}', text, "
            f"and '{VECTORS}', one vector of numbers an image."
        ) from error
    if vectors.ndim != 2 or len(vectors) != len(ids) or vectors.shape[1] == 0:
        raise UserError(
            f"Embeddings '{encoder}': {file} holds {len(ids)} ids and vectors of shape "
            f"{vectors.shape}; wanted is ({len(ids)}, width)."
        )
    twice = ids[pd.Index(ids).duplicated()]
    if len(twice):
        raise UserError(f"Embeddings '{encoder}': {file} holds the image '{twice[0]}' twice.")
    return ids, vectors


def _read_npz(file: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.load(file, allow_pickle=False)
    if isinstance(content, np.ndarray):
        raise ValueError("it is a single array")
    with content:
        ids, vectors = content[IDS], content[VECTORS]
    if ids.ndim != 1 or ids.dtype.kind != "U":
        raise ValueError(f"'{IDS}' is an array of type {ids.dtype} and shape {ids.shape}")
    if vectors.dtype.kind not in "fiu":
        raise ValueError(f"'{VECTORS}' is an array of type {vectors.dtype}")
    return ids, _float32(vectors)


def _float32(vectors: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as such
        return vectors.astype(np.float32, copy=False)


def _read_table(file: Path) -> tuple[np.ndarray, np.ndarray]:
    if file.suffix == ".parquet":
        table = pq.read_table(file, columns=[IDS, VECTORS])
    else:
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_file(source).read_all().select([IDS, VECTORS])
    ids, vectors = table.column(IDS), table.column(VECTORS)
    if ids.null_count or not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)):
        raise ValueError(f"'{IDS}' is of type {ids.type} with {ids.null_count} empty cells")
    kind = vectors.type
    is_list = any(
        check(kind)
        for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )
    if not is_list or not (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    ):
        raise ValueError(f"'{VECTORS}' is of type {kind}")
    if vectors.null_count:
        raise ValueError(f"'{VECTORS}' has {vectors.null_count} empty cells")
    rows = vectors.combine_chunks()
    lengths = np.unique(rows.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValueError(f"'{VECTORS}' has vectors of {lengths[0]} and of {lengths[-1]} numbers")
    values = rows.flatten()
    if values.null_count:
        raise ValueError(f"'{VECTORS}' has {values.null_count} empty values")
    matrix = _float32(values.to_numpy(zero_copy_only=False))
    return ids.to_numpy().astype(str), matrix.reshape(len(ids), -1 if len(ids) else 0)
