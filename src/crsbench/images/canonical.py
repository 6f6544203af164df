"""The canonical image: what every perturbation and every encoder starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from crsbench.images.decoding import decode_as_stored
from crsbench.images.filtering import image_of, pixels_of, resized


def read_canonical(file: Path, short_side: int, max_pixels: int) -> Image.Image:
    """Decode a file upright, its short side resized to `short_side` pixels: 8-bit grey or RGB.

    The resize is bicubic with antialiasing; `images.decoding` says the rest. An image whose three
    channels are the same is grey, however it is stored: its perturbations and preprocessing act on
    one channel, at a third of the cost and with the same values.
    """
    image = resize_short_side(decode_as_stored(file, max_pixels)[0], short_side)
    return image.getchannel(0) if _is_grey(image) else image


def _is_grey(image: Image.Image) -> bool:
    """Whether the three channels are the same; a few rows show it of most colour images."""
    if image.mode == "L":
        return False  # nothing is left to be done
    values = np.asarray(image)
    return all((part == part[..., :1]).all() for part in (values[::64], values))


def resize_short_side(image: Image.Image, short_side: int) -> Image.Image:
    """Resize so that the short side is `short_side`, keeping the aspect (long side rounded)."""
    short = min(image.size)
    if short == short_side:
        return image
    size = tuple(max(short_side, round(side * short_side / short)) for side in image.size)
    return image_of(resized(pixels_of(image), size, "bicubic"))
