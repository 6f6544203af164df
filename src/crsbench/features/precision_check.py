"""The gate before an extraction: features must not depend on the batch, nor on the precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from crsbench.core.errors import UserError
from crsbench.core.names import CLEAN
from crsbench.encoders import LoadedEncoder
from crsbench.features.extraction import FLOAT32, ImageViews, ViewName, encode

SAMPLE = 8
"""How many of a job's images are tried, spread evenly over its ids, undegraded."""

BATCH_TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Allowed difference of a feature alone and in a batch, relative to its norm, by precision."""

FLOAT32_TOLERANCE: Mapping[str, float] = {"bfloat16": 5e-2, "float16": 1e-2}
"""Allowed difference of a feature from the one in float32, relative to the latter's norm.

A number is rounded to 2^-9 of itself in bfloat16, to 2^-12 in float16. Vision transformers with
random weights then differ by 0.007 and 0.0009, EfficientNet-Lite on images by up to 0.064 and 0.007
(by autocast on a CPU): what one of them loses in bfloat16 is refused.
"""


def check_precision(
    encoder: LoadedEncoder,
    views: ImageViews,
    *,
    device: torch.device,
    batch_size: int,
    precision: str,
) -> None:
    """Encode a sample alone and in full batches and, in a reduced precision, in float32 as well.

    The sample is repeated up to whole batches of `batch_size`, so that the kernels are the
    extraction's own. Raises UserError naming the image whose features differ most, the Euclidean
    distance found, relative to the feature's norm, and the one allowed; or as `encode` does.
    """
    sample = _sample(encoder, views, device)
    full = _in_batches(encoder, sample, device, batch_size, precision)
    alone = _in_batches(encoder, sample, device, 1, precision)
    advice = "an encoder must see each image by itself (in evaluation mode, without randomness)"
    compared = f"alone and in a batch of {batch_size}"
    names = sample[0]
    _check(encoder, names, full, alone, BATCH_TOLERANCE[precision], compared, advice)
    if precision != FLOAT32:
        exact = _in_batches(encoder, sample, device, batch_size, FLOAT32)
        compared, advice = f"in {precision} and in float32", "set extraction.precision: float32"
        _check(encoder, names, full, exact, FLOAT32_TOLERANCE[precision], compared, advice)


Sample = tuple[list[ViewName], torch.Tensor]


def _sample(encoder: LoadedEncoder, views: ImageViews, device: torch.device) -> Sample:
    """The names of the images that are tried, and their pixels (n, size, size, 3)."""
    at = np.unique(np.linspace(0, len(views) - 1, SAMPLE).round().astype(int))
    chosen = replace(
        views,
        files=[views.files[index] for index in at],
        image_ids=[views.image_ids[index] for index in at],
        conditions=[(CLEAN,)] * len(at),
        geometries=[encoder.preprocessing.geometry],
    )
    names, pixels = [], []
    for index in range(len(chosen)):
        item = chosen[index]
        if isinstance(item, UserError):
            raise item
        names += chosen.named(index)
        pixels += item.to(device)
    return names, torch.cat(pixels)


def _in_batches(
    encoder: LoadedEncoder, sample: Sample, device: torch.device, batch_size: int, precision: str
) -> np.ndarray:
    """(len(sample), width): the sample's features from whole batches alone."""
    names, pixels = sample
    count = -(-len(names) // batch_size) * batch_size
    rows = []
    for start in range(0, count, batch_size):
        at = [index % len(names) for index in range(start, start + batch_size)]
        of_batch = [names[index] for index in at]
        rows.append(encode(encoder, pixels[at], of_batch, device, precision))
    return np.concatenate(rows)[: len(names)]


def _check(
    encoder: LoadedEncoder,
    names: list[ViewName],
    found: np.ndarray,
    wanted: np.ndarray,
    allowed: float,
    compared: str,
    advice: str,
) -> None:
    if found.shape != wanted.shape:
        raise UserError(
            f"The features of the encoder '{encoder.name}' have widths {found.shape[1]} and "
            f"{wanted.shape[1]} {compared}; {advice}."
        )
    distance = np.linalg.norm(found.astype(float) - wanted, axis=1)
    norm = np.linalg.norm(wanted.astype(float), axis=1)
    # A feature of zeros must stay so: from it every difference is infinite.
    share = np.divide(distance, norm, out=np.where(distance > 0, np.inf, 0.0), where=norm > 0)
    worst = int(np.argmax(share))
    if share[worst] > allowed:
        index = int(np.argmax(np.abs(found[worst].astype(float) - wanted[worst])))
        raise UserError(
            f"The features of the encoder '{encoder.name}' for image '{names[worst].image_id}' "
            f"differ {compared} by {share[worst]:.1e} of their norm, most at index {index} of "
            f"{found.shape[1]} ({found[worst, index]:.4g} and {wanted[worst, index]:.4g}); allowed "
            f"is {allowed:.0e}; {advice}."
        )
