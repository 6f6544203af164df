"""The extraction loop: each image is decoded once, all its views pass the frozen encoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from crsbench.core.errors import UserError
from crsbench.core.memory import keep_freed_memory
from crsbench.core.names import CLEAN
from crsbench.core.progress import progress
from crsbench.encoders import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.features.overflow import first_not_finite
from crsbench.features.shards import ShardedFeatures
from crsbench.images.canonical import read_canonical
from crsbench.images.perturbations import perturb
from crsbench.images.scaling import DEFAULT, Scaling

LIBRARIES = ("numba", "numpy", "open_clip_torch", "pillow", "timm", "torch", "transformers")
"""What a feature file names the versions of."""

FLOAT32 = "float32"
"""The precision that every other one is measured against."""


@dataclass(frozen=True)
class Pixels:
    """The views of one image: an array (views, size, size, 3) for each of the geometries."""

    arrays: Sequence[np.ndarray | torch.Tensor]

    def pin_memory(self) -> Pixels:
        """In memory that a GPU copies from on its own; called by the loader's own thread."""
        return Pixels([torch.from_numpy(array).pin_memory() for array in self.arrays])

    def to(self, device: torch.device) -> list[torch.Tensor]:
        return [torch.as_tensor(array).to(device, non_blocking=True) for array in self.arrays]


@dataclass(frozen=True)
class ImageViews(Dataset[Pixels | UserError]):
    """Item i: the views of image i, or the reason why it has none (raised by the reader).

    conditions: those of each image, in the order of its views; geometries: what the views are made
    to, each once (`Preprocessing.geometry`).
    """

    files: Sequence[Path]
    image_ids: Sequence[str]
    conditions: Sequence[Sequence[str]]
    geometries: Sequence[Preprocessing]
    levels: Mapping[str, Sequence[float]]
    short_side: int
    max_pixels: int
    scaling: Scaling = DEFAULT

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Pixels | UserError:
        image_id = self.image_ids[index]
        try:
            image = read_canonical(
                self.files[index], self.short_side, self.max_pixels, self.scaling
            )
        except UserError as error:
            return error
        views: list[list[np.ndarray]] = [[] for _ in self.geometries]
        for condition in self.conditions[index]:
            seen = image if condition == CLEAN else perturb(image, condition, image_id, self.levels)
            for made, geometry in zip(views, self.geometries, strict=True):
                made.append(geometry.pixels(seen))
        return Pixels([np.stack(made) for made in views])

    def named(self, index: int) -> list[ViewName]:
        return [ViewName(self.image_ids[index], name) for name in self.conditions[index]]


@dataclass(frozen=True)
class ViewName:
    """One image under one condition."""

    image_id: str
    condition: str


@dataclass
class Batch:
    """Views that pass an encoder together: their names, and their pixels in each geometry."""

    names: list[ViewName] = field(default_factory=list)
    parts: list[list[torch.Tensor]] = field(default_factory=list)

    def add(self, names: Sequence[ViewName], arrays: Sequence[torch.Tensor]) -> None:
        self.names += names
        self.parts.append(list(arrays))

    def pixels(self, geometry: int) -> torch.Tensor:
        return torch.cat([part[geometry] for part in self.parts])


def geometries_of(encoders: Sequence[LoadedEncoder]) -> list[Preprocessing]:
    """Each geometry of the encoders once, in the order of its first."""
    return list(dict.fromkeys(encoder.preprocessing.geometry for encoder in encoders))


def extract(
    encoders: Sequence[LoadedEncoder],
    views: ImageViews,
    outputs: Mapping[str, Mapping[str, Path]],
    *,
    device: torch.device,
    batch_size: int,
    workers: int,
    metadata: Mapping[str, Any],
    precision: str = FLOAT32,
    made_by: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Write the features of every view: by encoder, each condition's file, complete or not at all.

    Images go in shards, batches of `batch_size` views in the order of images and
    conditions within one, so that the bits depend on nothing else: not on the encoders that run
    beside one, nor on `workers`, the processes that decode and degrade ahead (0: this process
    does). A shard is kept on the disk until all are there: a job that was killed goes on with the
    shard that it was at. The forward pass computes in `precision`, by autocast; features are stored
    as float32. metadata: of every file; made_by: by encoder what decides its features
    (`ExtractionSettings.made_by`). Raises UserError naming the image that can't be read or whose
    features are not finite.
    """
    about = [
        _metadata(encoder, views, precision, {**metadata, "made_by": made_by.get(encoder.name)})
        for encoder in encoders
    ]
    how = {"batch_size": batch_size, "hardware": _hardware(device)}
    stores = [
        ShardedFeatures(outputs[encoder.name], views.image_ids, views.conditions, made | how)
        for encoder, made in zip(encoders, about, strict=True)
    ]
    todo = [shard for shard in stores[0].shards if not all(shard in store for store in stores)]
    images = [index for shard in todo for index in shard]
    loader = DataLoader(
        views,
        batch_size=None,
        sampler=images,
        num_workers=workers,
        worker_init_fn=keep_freed_memory,
        pin_memory=device.type == "cuda",
    )
    label = f"{', '.join(encoder.name for encoder in encoders)} × {metadata['dataset']}"
    items = progress(loader, label, len(images), "image")
    for shard in todo:
        batches = _batches(views, shard, items, device, batch_size)
        rows = _encoded(encoders, views.geometries, batches, device, precision)
        for store, found in zip(stores, rows, strict=True):
            store.keep(shard, found)
    for store, made in zip(stores, about, strict=True):
        store.write(made)


def _batches(
    views: ImageViews,
    shard: range,
    items: Iterator[Pixels | UserError],
    device: torch.device,
    size: int,
) -> Iterator[Batch]:
    """The shard's views in batches of `size`, the last one smaller."""
    batch = Batch()
    for index in shard:
        item = next(items)
        if isinstance(item, UserError):
            raise item
        names, arrays = views.named(index), item.to(device)
        start = 0
        while start < len(names):
            end = min(start + size - len(batch.names), len(names))
            batch.add(names[start:end], [array[start:end] for array in arrays])
            start = end
            if len(batch.names) == size:
                yield batch
                batch = Batch()
    if batch.names:
        yield batch


def _encoded(
    encoders: Sequence[LoadedEncoder],
    geometries: Sequence[Preprocessing],
    batches: Iterator[Batch],
    device: torch.device,
    precision: str,
) -> list[np.ndarray]:
    """For each encoder (views, width) float32."""
    rows: list[list[np.ndarray]] = [[] for _ in encoders]
    for batch in batches:
        for encoder, found in zip(encoders, rows, strict=True):
            pixels = batch.pixels(geometries.index(encoder.preprocessing.geometry))
            found.append(encode(encoder, pixels, batch.names, device, precision))
    return [np.concatenate(found) for found in rows]


@torch.inference_mode()
def encode(
    encoder: LoadedEncoder,
    pixels: torch.Tensor,
    names: Sequence[ViewName],
    device: torch.device,
    precision: str,
) -> np.ndarray:
    """Pixels (n, size, size, 3) on the device as features (n, width) float32.

    Raises UserError for another shape, or naming the view and index of a value that is not finite
    and, where it can be seen, the first module that gave one.
    """
    autocast = torch.autocast(device.type, getattr(torch, precision), enabled=precision != FLOAT32)
    images = encoder.preprocessing.normalise(pixels)
    with autocast:
        rows = encoder.encode(images)
    if rows.ndim != 2 or len(rows) != len(names):
        raise UserError(
            f"The encoder '{encoder.name}' gave an output of shape {tuple(rows.shape)} for "
            f"{len(names)} images; wanted is ({len(names)}, width)."
        )
    features = rows.float().cpu().numpy()
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        first = int(np.argmin(finite))
        view, bad = names[first], np.flatnonzero(~np.isfinite(features[first]))
        with autocast:
            module = first_not_finite(encoder.encode, images[first : first + 1])
        where = f"; the first part whose output is not finite is {module}" if module else ""
        advice = "" if precision == FLOAT32 else "; extraction.precision: float32 may hold it"
        raise UserError(
            f"The encoder '{encoder.name}' gave a non-finite feature for image '{view.image_id}' "
            f"under the condition '{view.condition}': {features[first, bad[0]]} at index {bad[0]} "
            f"({len(bad)} of {features.shape[1]} values are such){where}{advice}."
        )
    return features


def _hardware(device: torch.device) -> str:
    """What the last bits of a feature may depend on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _metadata(
    encoder: LoadedEncoder, views: ImageViews, precision: str, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """What made an encoder's feature files, for their schema: enough to trace any number back."""
    base_model = encoder.base_model
    return {
        **metadata,
        "encoder": encoder.name,
        "weights_sha256": encoder.weights_sha256,
        "base_model": None
        if base_model is None
        else {**asdict(base_model), "told": str(base_model)},
        "trained": encoder.trained,
        "preprocessing": asdict(encoder.preprocessing),
        "short_side": views.short_side,
        "levels": {kind: list(levels) for kind, levels in views.levels.items()},
        "dtype": precision,
        "versions": {name: version(name) for name in LIBRARIES},
    }
