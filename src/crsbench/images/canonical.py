"""The canonical image: what every perturbation and every encoder starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from crsbench.core.errors import UserError
from crsbench.images.decoding import decode_as_stored
from crsbench.images.filtering import image_of, pixels_of, resized
from crsbench.images.scaling import DEFAULT, Scaling


def read_canonical(
    file: Path, short_side: int, max_pixels: int, scaling: Scaling = DEFAULT
) -> Image.Image:
    """Decode a file upright, its short side resized to `short_side` pixels: 8-bit grey or RGB.

    The resize is bicubic with antialiasing; `images.decoding` says the rest. An image whose three
    channels are the same is grey, however it is stored: its perturbations and preprocessing act on
    one channel, at a third of the cost and with the same values. Raises UserError naming the file,
    before memory is taken, when what is made of it is too large (`check_canonical`).
    """
    image = decode_as_stored(file, max_pixels, scaling).image
    check_canonical(file, image.size, short_side, max_pixels)
    image = resize_short_side(image, short_side)
    return image.getchannel(0) if _is_grey(image) else image


def check_canonical(file: Path, size: tuple[int, int], short_side: int, max_pixels: int) -> None:
    """Refuse an image whose canonical image is too large.

    The square on its long side, which some encoders pad it to, may have `max_pixels` pixels; all
    else that is made of it, degraded or not, is smaller.
    """
    made = max(canonical_size(size, short_side))
    if made**2 > max_pixels:
        raise UserError(
            f"The image {file} has {size[0]} × {size[1]} pixels: with image.short_side = "
            f"{short_side} its long side becomes {made}, and the square on that has {made**2} "
            f"pixels, more than image.max_pixels = {max_pixels}."
        )


def canonical_size(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """(width, height) with the short side `short_side` and the long side rounded."""
    short = min(size)
    return tuple(max(short_side, round(side * short_side / short)) for side in size)


def _is_grey(image: Image.Image) -> bool:
    """Whether the three channels are the same; a few rows show it of most colour images."""
    if image.mode == "L":
        return False  # nothing is left to be done
    values = np.asarray(image)
    return all((part == part[..., :1]).all() for part in (values[::64], values))


def resize_short_side(image: Image.Image, short_side: int) -> Image.Image:
    """Resize so that the short side is `short_side`, keeping the aspect (long side rounded)."""
    if min(image.size) == short_side:
        return image
    size = canonical_size(image.size, short_side)
    return image_of(resized(pixels_of(image), size, "bicubic"))
