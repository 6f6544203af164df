"""What every encoder must keep to: a check that users can run on their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from crsbench.encoders.base import LoadedEncoder

# Allowed difference of a feature between batches, relative to the largest feature: matrix products
# of another size sum in another order.
TOLERANCE = 1e-4

RULES = ("shape", "finite", "differing", "repeated", "alone", "order", "others", "depth 1")
"""The headings of what is checked, in its order."""


@dataclass(frozen=True)
class Check:
    """One rule, one of :data:`RULES`; what was found; the sentence of its fault, "" if kept."""

    rule: str
    found: str
    fault: str = ""


def check_encoder(encoder: LoadedEncoder, device: torch.device | None = None) -> None:
    """Raise AssertionError with the sentence of the first rule that an encoder does not keep.

    The rules and the images are those of :func:`checks_of`.
    """
    for check in checks_of(encoder, device or torch.device("cpu")):
        if check.fault:
            raise AssertionError(check.fault)


@torch.inference_mode()
def checks_of(encoder: LoadedEncoder, device: torch.device) -> list[Check]:
    """Check an encoder on eight images that its own preprocessing could have made.

    Its features must be a (n, width) floating-point tensor, finite, not the same for every image,
    bit-identical from run to run, and, within 1e-4 of the largest feature, independent of the other
    images of the batch: alone or together, in whatever order. An encoder with `blocks` must give
    its own feature at depth 1. Features of another form or with values that are not finite are not
    compared: then there are no further checks.
    """
    images = _images(encoder).to(device)
    features = encoder.encode(images)
    form = _checks_of_form(encoder.name, features, len(images))
    if any(check.fault for check in form[:2]):
        return form
    again = torch.equal(features, encoder.encode(images))
    said = "" if again else f"The encoder '{encoder.name}' gives other features when run again."
    checks = [*form, Check("repeated", "same bits" if again else "other", said)]

    def near(rule: str, wanted: torch.Tensor, found: torch.Tensor, fault: str) -> None:
        checks.append(_near(rule, wanted, found, f"The features of '{encoder.name}' {fault}"))

    alone = torch.cat([encoder.encode(images[i : i + 1]) for i in range(len(images))])
    near("alone", features, alone, "depend on the batch's size")
    order = torch.tensor([3, 1, 7, 0, 6, 2, 5, 4], device=device)
    near("order", features[order], encoder.encode(images[order]), "depend on the order")
    other = images.clone()
    other[1:] = other[1:].flip(0)
    near("others", features[:1], encoder.encode(other)[:1], "depend on the other images")
    if hasattr(encoder.encode, "blocks"):
        (full,) = encoder.encode.blocks(images, (1.0,))
        near("depth 1", features, full, "at depth 1 are not its own")
    return checks


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


def _checks_of_form(name: str, features: torch.Tensor, count: int) -> list[Check]:
    """Shape and type, finiteness, and that not every image looks alike."""
    shape, said = str(tuple(features.shape)), ""
    if features.ndim != 2 or len(features) != count or features.shape[1] == 0:
        said = (
            f"The encoder '{name}' gives features of shape {shape} for {count} images; wanted is "
            f"({count}, width)."
        )
    elif not features.is_floating_point():
        said = f"The encoder '{name}' gives features of type {features.dtype}."
    checks = [Check("shape", shape, said)]
    if said:
        return checks
    bad = int((~torch.isfinite(features)).sum())
    said = f"The encoder '{name}' gives {bad} features that are not finite." if bad else ""
    checks.append(Check("finite", "no" if bad else "yes", said))
    different = len(torch.unique(features, dim=0))
    said = "" if different > 1 else f"The encoder '{name}' gives the same features for every image."
    return [*checks, Check("differing", f"{different} of {count}", said)]


def _near(rule: str, wanted: torch.Tensor, found: torch.Tensor, fault: str) -> Check:
    if found.shape != wanted.shape:
        shapes = f"shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
        return Check(rule, str(tuple(found.shape)), f"{fault}: {shapes}.")
    difference = ((wanted - found).abs().max() / wanted.abs().max()).item()
    if difference <= TOLERANCE:
        return Check(rule, f"{difference:.1e}")
    return Check(
        rule,
        f"{difference:.1e}",
        f"{fault}: they differ by {difference:.1e} of the largest feature; allowed is "
        f"{TOLERANCE:.0e}.",
    )
