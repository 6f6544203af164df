"""A data set's manifest, split and features, written as the workflow writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.core.files import read_table, write_table
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import write_split, write_test
from crsbench.evaluation.runs import (
    fit_probes,
)
from crsbench.features.store import FeatureWriter
from crsbench.probes import ProbeSettings

FRACTIONS = [1, 10, 100]


SETTINGS = ProbeSettings(c_grid=(0.01, 1.0), tolerance=1e-10, max_iterations=2000)


@dataclass
class World:
    """A data set of 400 images with four features a class, written as the workflow writes it."""

    folder: Path
    task: str
    matrix: np.ndarray

    @property
    def manifest_file(self) -> Path:
        return self.folder / "manifest.parquet"

    @property
    def split_file(self) -> Path:
        return self.folder / "split.parquet"

    def features(self, name: str, matrix: np.ndarray, rows: np.ndarray | None = None) -> Path:
        path = self.folder / f"{name}.arrow"
        ids = self.manifest.image_ids
        with FeatureWriter(path, {"weights_sha256": "f" * 64}) as writer:
            for index in np.arange(len(ids)) if rows is None else np.flatnonzero(rows):
                writer.append(ids[index], matrix[index].astype(np.float32))
        return path

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.manifest_file)


def write_world(
    folder: Path,
    task: str,
    namespace: str = "d",
    n: int = 400,
    classes: str = "abc",
    contents: str | None = None,
) -> World:
    """contents: what the files' bytes begin with, by default the name of the groups' world."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    share = np.array([{"a": 0.5, "b": 0.3, "c": 0.1}[name] for name in classes])
    if task == "multiclass":
        chosen = random.choice(len(classes), n, p=share / share.sum())
        truth = np.eye(len(classes), dtype=np.int8)[chosen]
    else:
        truth = (random.random((n, len(classes))) < share).astype(np.int8)
    matrix = 7 + 3 * random.normal(size=(n, 12))
    matrix[:, ["abc".index(name) for name in classes]] += 2.5 * truth
    matrix[:, 11] = 4.0  # a constant feature
    ids = [f"i{index:04d}" for index in range(n)]
    frame = pd.DataFrame({"image_id": ids, "path": ids, "group": [f"p{i // 2}" for i in range(n)]})
    frame["labels"] = list(truth)
    frame["content_sha256"] = [f"{contents or namespace} {name}" for name in ids]
    frame["dropped"] = False
    metadata = {
        "dataset": "d",
        "task": task,
        "classes": list(classes),
        "group_namespace": namespace,
    }
    write_table(folder / "manifest.parquet", frame, metadata)
    write_test(folder / "test.parquet", folder / "manifest.parquet", 0.2)
    files = folder / "manifest.parquet", folder / "test.parquet"
    write_split(folder / "split.parquet", *files, 0, FRACTIONS, 0.125)
    return World(folder, task, matrix)


def fitted(world: World, features: Path) -> dict[int, Path]:
    outputs = {percent: world.folder / f"frac{percent:03d}.npz" for percent in FRACTIONS}
    fit_probes(features, world.manifest_file, world.split_file, outputs, SETTINGS)
    return outputs


def relabelled(world: World, truth: np.ndarray) -> World:
    """Write the world's manifest anew with another truth."""
    frame, metadata = read_table(world.manifest_file)
    frame["labels"] = list(truth.astype(np.int8))
    write_table(world.manifest_file, frame, metadata)
    return world
