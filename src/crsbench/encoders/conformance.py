"""What every encoder must keep to: a check that users can run on their own."""

from __future__ import annotations

import numpy as np
import torch

from crsbench.encoders.base import LoadedEncoder

# Allowed difference of a feature between batches, relative to the largest feature: matrix products
# of another size sum in another order.
TOLERANCE = 1e-4


@torch.inference_mode()
def check_encoder(encoder: LoadedEncoder, device: torch.device | None = None) -> None:
    """Check an encoder on eight images that its own preprocessing could have made.

    Its features must be a (n, width) floating-point tensor, finite, not the same for every image,
    bit-identical from run to run, and, within 1e-4 of the largest feature, independent of the other
    images of the batch: alone or together, in whatever order. An encoder with `blocks` must give
    its own feature at depth 1.

    Raises AssertionError with one sentence that names the encoder, the rule and the value found.
    """
    device = device or torch.device("cpu")
    images = _images(encoder).to(device)
    features = encoder.encode(images)
    _check_form(encoder.name, features, len(images))

    again = encoder.encode(images)
    _check(torch.equal(features, again), encoder, "gives other features when run again")
    alone = torch.cat([encoder.encode(images[i : i + 1]) for i in range(len(images))])
    _check_near(features, alone, encoder, "depend on the batch's size")
    order = torch.tensor([3, 1, 7, 0, 6, 2, 5, 4], device=device)
    _check_near(features[order], encoder.encode(images[order]), encoder, "depend on the order")
    other = images.clone()
    other[1:] = other[1:].flip(0)
    _check_near(features[:1], encoder.encode(other)[:1], encoder, "depend on the other images")
    if hasattr(encoder.encode, "blocks"):
        (full,) = encoder.encode.blocks(images, (1.0,))
        _check_near(features, full, encoder, "at depth 1 are not its own")


def _images(encoder: LoadedEncoder) -> torch.Tensor:
    """(8, 3, size, size): noise of eight contrasts on the scale that the preprocessing gives."""
    preprocessing = encoder.preprocessing
    size = preprocessing.size
    values = np.random.default_rng(0).random((8, 3, size, size), dtype=np.float32)
    values *= np.linspace(0.3, 1, 8, dtype=np.float32)[:, None, None, None] * preprocessing.white
    mean, std = (
        np.float32(part)[:, None, None] for part in (preprocessing.mean, preprocessing.std)
    )
    return torch.from_numpy((values - mean) / std)


def _check_form(name: str, features: torch.Tensor, count: int) -> None:
    if features.ndim != 2 or len(features) != count or features.shape[1] == 0:
        raise AssertionError(
            f"The encoder '{name}' gives features of shape {tuple(features.shape)} for {count} "
            f"images; wanted is ({count}, width)."
        )
    if not features.is_floating_point():
        raise AssertionError(f"The encoder '{name}' gives features of type {features.dtype}.")
    if not torch.isfinite(features).all():
        raise AssertionError(f"The encoder '{name}' gives features that are not finite.")
    if len(torch.unique(features, dim=0)) == 1:
        raise AssertionError(f"The encoder '{name}' gives the same features for every image.")


def _check(kept: bool, encoder: LoadedEncoder, fault: str) -> None:
    if not kept:
        raise AssertionError(f"The encoder '{encoder.name}' {fault}.")


def _check_near(
    wanted: torch.Tensor, found: torch.Tensor, encoder: LoadedEncoder, fault: str
) -> None:
    if found.shape != wanted.shape:
        raise AssertionError(
            f"The features of the encoder '{encoder.name}' {fault}: shape {tuple(found.shape)} "
            f"instead of {tuple(wanted.shape)}."
        )
    difference = ((wanted - found).abs().max() / wanted.abs().max()).item()
    if not difference <= TOLERANCE:
        raise AssertionError(
            f"The features of the encoder '{encoder.name}' {fault}: they differ by "
            f"{difference:.1e} of the largest feature; allowed is {TOLERANCE:.0e}."
        )
