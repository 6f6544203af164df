"""The manifest: one row an image, with its file, group, labels and subgroup columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry, Task
from crsbench.core.errors import UserError
from crsbench.core.files import read_table, write_table
from crsbench.data.image_checks import check_depth
from crsbench.data.readers import RESERVED, ImageTable, read_images
from crsbench.data.readers.identities import check_giant_groups
from crsbench.data.scan import scan_images, unscanned
from crsbench.images.draws import REFERENCE_SIDE
from crsbench.images.scaling import Scaling


@dataclass(frozen=True)
class Manifest:
    """The images of a data set, sorted by `image_ids`.

    image_ids, paths (relative to the image root), groups: (n,) str arrays; truth: (n, K) int8,
    one-hot for multiclass and multi-hot for multilabel, columns in the order of `classes`; -1 where
    it is unknown whether a label of a multilabel set holds;
    group_namespace: manifests with the same one have comparable groups (the same patients);
    dropped: mask (n,) of images that nothing may be fitted on, None for no image.
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
    dropped: np.ndarray | None = None


def write_manifest(
    manifest_file: Path | str,
    images_file: Path | str,
    entry: DatasetEntry,
    root: Path,
    *,
    max_pixels: int,
    workers: int,
    short_side: int = REFERENCE_SIDE,
) -> None:
    """Read a data set below its folder `root`, scan its images, write manifest and image table.

    The image table holds the scan of every image, the quarantined ones too. Of a data set without
    images nothing is scanned: contents stay empty, so that no duplicates are known. Raises
    UserError on anything that is absent or ambiguous; then neither file is written.
    """
    found = read_images(entry, root)
    images = found.frame.sort_values("image_id", ignore_index=True)
    if entry.without_images:
        scan = unscanned(images["path"])
    else:
        scan = scan_images(
            root,
            images["path"],
            label=entry.name,
            max_pixels=max_pixels,
            cache_file=Path(images_file).with_suffix(".cache.jsonl"),
            workers=workers,
            short_side=short_side,
            scaling=Scaling.of(entry.spec),
        )
        check_depth(entry.name, scan, Scaling.of(entry.spec))
    scan.insert(0, "image_id", images["image_id"])
    frame = manifest_frame(entry, images, scan)
    write_table(images_file, scan)
    write_table(manifest_file, frame, manifest_metadata(entry, found))


def manifest_frame(entry: DatasetEntry, images: pd.DataFrame, scan: pd.DataFrame) -> pd.DataFrame:
    """The manifest's rows from a reader's frame and the scan of its images, row by row.

    Images with equal bytes, or linked through a chain of such images, share a group, so that no
    duplicate can cross a split; where they carry different labels, the entry's
    `conflicting_duplicates` says whether anything may be fitted on them (`drop`, the default, or
    `keep`). A missing or damaged image stops the run with a UserError; with `damaged_images:
    quarantine` it is left out for every encoder alike.
    """
    whole = (scan["error"] == "").to_numpy()
    if not whole.all() and (entry.spec.get("damaged_images", "stop") == "stop" or not whole.any()):
        raise UserError(_report_damaged(scan[~whole], len(scan), entry.name))
    frame = images.assign(content_sha256=scan["content_sha256"].to_numpy())[whole]
    frame = frame.reset_index(drop=True)
    frame["group"] = _join_groups(frame["group"], frame["content_sha256"])
    check_giant_groups(entry, frame["group"])
    may_fit = entry.spec.get("conflicting_duplicates", "drop") == "keep"
    frame["dropped"] = False if may_fit else conflicting(frame)
    return frame


def conflicting(frame: pd.DataFrame) -> np.ndarray:
    """Mask (n,) of the images of which an exact duplicate has other labels."""
    labels = pd.Series([bytes(np.asarray(values, np.int8)) for values in frame["labels"]])
    versions = labels.groupby(frame["content_sha256"].to_numpy()).transform("nunique")
    return ((versions > 1) & (frame["content_sha256"].to_numpy() != "")).to_numpy()


def manifest_metadata(entry: DatasetEntry, found: ImageTable) -> dict[str, Any]:
    """What stands in a manifest's schema: task, classes, and what the reader counted."""
    return {
        "dataset": entry.name,
        "task": entry.task,
        "classes": list(entry.classes),
        "group_namespace": _group_namespace(entry),
        "left_out": dict(found.left_out),
        **({"demographics": dict(found.demographics)} if found.demographics else {}),
    }


def _group_namespace(entry: DatasetEntry) -> str:
    """Data sets that are read from the same tables have comparable groups."""
    if entry.synthetic:
        return entry.name
    return "/".join([entry.spec["reader"], entry.spec["root"], entry.spec.get("table", "")])


def _report_damaged(damaged: pd.DataFrame, n_images: int, dataset: str) -> str:
    first = damaged.iloc[0]
    return (
        f"Data set '{dataset}': {len(damaged)} of {n_images} images are missing or damaged, the "
        f"first is '{first['path']}' ({first['error'].rstrip('.')}); fix them, or set "
        "damaged_images: quarantine to leave them out for every encoder."
    )


def read_manifest(path: Path | str) -> Manifest:
    frame, metadata = read_table(path)
    if not {*RESERVED} <= {*frame}:
        raise UserError(f"{path} is the manifest of another release; delete it and rerun.")
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
        frame["dropped"].to_numpy(dtype=bool),
    )


def read_contents(path: Path | str) -> np.ndarray:
    """The SHA-256 of each image's file, (n,) bytes in the order of the manifest's images.

    Empty for images that were not scanned.
    """
    contents, _ = read_table(path, columns=["content_sha256"])
    return contents["content_sha256"].to_numpy().astype("S")


def _join_groups(groups: Sequence[str], contents: Sequence[str]) -> list[str]:
    """Merge groups that share a content; a merged group takes its smallest member's name.

    Nothing is shared where the content is not known, "".
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    first_with: dict[str, str] = {}
    for group, content in zip(groups, contents, strict=True):
        if not content:
            continue
        low, high = sorted((root(group), root(first_with.setdefault(content, group))))
        parent[high] = low
    return [root(group) for group in groups]
