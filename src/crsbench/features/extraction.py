"""The extraction loop: each image is decoded once, all its views pass the frozen encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from crsbench.config import CLEAN
from crsbench.encoders import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.errors import UserError
from crsbench.features.store import FeatureWriter
from crsbench.images.canonical import read_canonical
from crsbench.images.perturbations import perturb
from crsbench.progress import progress

LIBRARIES = ("numpy", "open_clip_torch", "pillow", "timm", "torch", "transformers")
"""What a feature file names the versions of."""

FLOAT32 = "float32"
"""The precision that every other one is measured against."""


@dataclass(frozen=True)
class View:
    """One image under one condition, preprocessed: (3, size, size) float32."""

    image_id: str
    condition: str
    pixels: np.ndarray


@dataclass(frozen=True)
class ImageViews(Dataset[list[View] | UserError]):
    """Item i: the views of image i, or the reason why it has none (raised by the reader)."""

    files: Sequence[Path]
    image_ids: Sequence[str]
    conditions: Sequence[Sequence[str]]
    preprocessing: Preprocessing
    levels: Mapping[str, Sequence[float]]
    short_side: int
    max_pixels: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[View] | UserError:
        image_id = self.image_ids[index]
        try:
            image = read_canonical(self.files[index], self.short_side, self.max_pixels)
        except UserError as error:
            return error
        views = []
        for condition in self.conditions[index]:
            seen = image if condition == CLEAN else perturb(image, condition, image_id, self.levels)
            views.append(View(image_id, condition, self.preprocessing(seen)))
        return views


def extract(
    encoder: LoadedEncoder,
    views: ImageViews,
    outputs: Mapping[str, Path],
    *,
    device: torch.device,
    batch_size: int,
    workers: int,
    metadata: Mapping[str, Any],
    precision: str = FLOAT32,
) -> None:
    """Write the features of every view to its condition's file, each whole or absent.

    Batches hold `batch_size` views in the order of images and conditions, so that the bits depend
    on nothing else; `workers` processes decode and degrade ahead (0: this process does). The
    forward pass computes in `precision`, by autocast; features are stored as float32. Raises
    UserError naming the image that can't be read or whose features are not finite.
    """
    with ExitStack() as stack:
        writers = {
            condition: stack.enter_context(
                FeatureWriter(path, _metadata(encoder, views, condition, precision, metadata))
            )
            for condition, path in outputs.items()
        }
        for batch in _batches(_in_order(views, workers, encoder.name, metadata), batch_size):
            rows = encode_views(encoder, batch, device, precision)
            for view, row in zip(batch, rows, strict=True):
                writers[view.condition].append(view.image_id, row)


def _in_order(
    views: ImageViews, workers: int, encoder: str, metadata: Mapping[str, Any]
) -> Iterator[View]:
    loader = DataLoader(views, batch_size=None, num_workers=workers)
    label = f"{encoder} × {metadata['dataset']}"
    for item in progress(loader, label, len(views), "image"):
        if isinstance(item, UserError):
            raise item
        yield from item


def _batches(views: Iterator[View], batch_size: int) -> Iterator[list[View]]:
    batch = []
    for view in views:
        batch.append(view)
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


@torch.inference_mode()
def encode_views(
    encoder: LoadedEncoder, batch: Sequence[View], device: torch.device, precision: str
) -> np.ndarray:
    """(len(batch), width) float32; UserError for another shape or a feature that is not finite."""
    pixels = torch.from_numpy(np.stack([view.pixels for view in batch]))
    pixels = pixels.to(device, memory_format=torch.channels_last)
    reduced = precision != FLOAT32
    with torch.autocast(device.type, getattr(torch, precision), enabled=reduced):
        rows = encoder.encode(pixels)
    if rows.ndim != 2 or len(rows) != len(batch):
        raise UserError(
            f"The encoder '{encoder.name}' gave an output of shape {tuple(rows.shape)} for "
            f"{len(batch)} images; wanted is ({len(batch)}, width)."
        )
    features = rows.float().cpu().numpy()
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        view = batch[int(np.argmin(finite))]
        raise UserError(
            f"The encoder '{encoder.name}' gave a non-finite feature for image '{view.image_id}' "
            f"under the condition '{view.condition}'."
        )
    return features


def _metadata(
    encoder: LoadedEncoder,
    views: ImageViews,
    condition: str,
    precision: str,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """What made a feature file, for its schema: enough to trace any number to its origin."""
    return {
        **metadata,
        "encoder": encoder.name,
        "condition": condition,
        "weights_sha256": encoder.weights_sha256,
        "general_twin": encoder.general_twin,
        "preprocessing": asdict(encoder.preprocessing),
        "short_side": views.short_side,
        "levels": {kind: list(levels) for kind, levels in views.levels.items()},
        "dtype": precision,
        "versions": {name: version(name) for name in LIBRARIES},
    }
