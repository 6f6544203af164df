"""The manifest: one row an image, with its file, group, labels and subgroup columns."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.config import DatasetEntry, Task
from crsbench.data.phantoms import KINDS
from crsbench.data.table_reader import RESERVED, read_image_table
from crsbench.errors import UserError
from crsbench.files import read_table, sha256_of_file, write_table
from crsbench.progress import progress


@dataclass(frozen=True)
class Manifest:
    """The images of a data set, sorted by `image_ids`.

    image_ids, paths (relative to the image root), groups: (n,) str arrays; truth: (n, K) int8,
    one-hot for multiclass and multi-hot for multilabel, columns in the order of `classes`;
    group_namespace: manifests with the same one have comparable groups (the same patients).
    """

    dataset: str
    task: Task
    classes: tuple[str, ...]
    group_namespace: str
    image_ids: np.ndarray
    paths: np.ndarray
    groups: np.ndarray
    truth: np.ndarray
    subgroups: pd.DataFrame


def write_manifest(path: Path | str, entry: DatasetEntry, table_file: Path) -> None:
    """Read a data set's table, hash its images, join duplicates, write the manifest.

    Images with equal bytes, or linked through a chain of such images, share a group, so that no
    duplicate can cross a split. Raises UserError on anything that is absent or ambiguous.
    """
    frame = read_image_table(_with_columns(entry), table_file)
    frame["content_sha256"] = _hash_images(table_file.parent, frame["path"], entry.name)
    frame["group"] = _join_groups(frame["group"], frame["content_sha256"])
    spec = entry.spec
    metadata = {
        "dataset": entry.name,
        "task": entry.task,
        "classes": list(entry.classes),
        "group_namespace": entry.name if entry.synthetic else f"{spec['root']}/{spec['table']}",
    }
    write_table(path, frame.sort_values("image_id", ignore_index=True), metadata)


def _with_columns(entry: DatasetEntry) -> DatasetEntry:
    """A phantom set is read as the table that the generator wrote."""
    if not entry.synthetic:
        return entry
    subgroups = list(KINDS[entry.spec["phantom"]["kind"]].subgroups)
    columns = {"id": "image_id", "path": "path", "label": "label", "group": "group"}
    spec = {**entry.spec, "columns": {**columns, "subgroups": subgroups}}
    return replace(entry, spec=spec | ({"separator": "|"} if entry.task == "multilabel" else {}))


def read_manifest(path: Path | str) -> Manifest:
    frame, metadata = read_table(path)
    classes = tuple(metadata["classes"])
    truth = np.stack(frame["labels"].to_list()).astype(np.int8)
    if truth.shape != (len(frame), len(classes)):
        raise UserError(f"{path} has labels of shape {truth.shape}; delete it and rerun.")
    ids, paths, groups = (frame[name].to_numpy(dtype=str) for name in ("image_id", "path", "group"))
    return Manifest(
        metadata["dataset"],
        metadata["task"],
        classes,
        metadata["group_namespace"],
        ids,
        paths,
        groups,
        truth,
        frame.drop(columns=list(RESERVED)),
    )


def _hash_images(root: Path, paths: Sequence[str], dataset: str) -> list[str]:
    missing = [path for path in paths if not (root / path).is_file()]
    if missing:
        raise UserError(
            f"Data set '{dataset}': {len(missing)} of {len(paths)} images are missing below "
            f"{root}, the first is '{missing[0]}'."
        )
    with ThreadPoolExecutor(8) as pool:
        digests = pool.map(lambda path: sha256_of_file(root / path), paths)
        return list(progress(digests, f"hash {dataset}", len(paths), "image"))


def _join_groups(groups: Sequence[str], contents: Sequence[str]) -> list[str]:
    """Merge groups that share a content; a merged group takes its smallest member's name."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    first_with: dict[str, str] = {}
    for group, content in zip(groups, contents, strict=True):
        low, high = sorted((root(group), root(first_with.setdefault(content, group))))
        parent[high] = low
    return [root(group) for group in groups]
