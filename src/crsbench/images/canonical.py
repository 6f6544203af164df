"""The canonical image: what every perturbation and every encoder starts from."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from crsbench.errors import UserError

DICOM_SUFFIXES = (".dcm", ".dicom")


class MissingExtraError(UserError):
    """An optional extra isn't installed: no fault of the image that needs it."""


def read_canonical(file: Path, short_side: int, max_pixels: int) -> Image.Image:
    """Decode a file to 8-bit RGB, upright, its short side resized to `short_side` pixels.

    The resize is bicubic with antialiasing; see `decode` for the rest.
    """
    return resize_short_side(decode(file, max_pixels)[0], short_side)


def decode(file: Path, max_pixels: int) -> tuple[Image.Image, str]:
    """Decode a file to upright 8-bit RGB; also returns the mode that it is stored in.

    EXIF orientation is applied; 16-bit grey is scaled to 8 bit over its full range; transparent
    pixels are laid on black; palette, CMYK and grey become RGB. A file called `.dcm` or `.dicom` is
    read by `images.dicom`. Raises UserError naming the file when it is no whole image, or when it
    has more than `max_pixels` pixels, and MissingExtraError when the extra `dicom` is needed and
    not installed.
    """
    if file.suffix.lower() in DICOM_SUFFIXES:
        from crsbench.images.dicom import decode_dicom

        return decode_dicom(file, max_pixels)
    try:
        with warnings.catch_warnings(), Image.open(file) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit below
            check_size(file, image.width, image.height, max_pixels)
            image.load()
            return to_rgb(ImageOps.exif_transpose(image)), image.mode
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"The image {file} cannot be decoded: {error}.") from error


def check_size(file: Path, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise UserError(
            f"The image {file} has {width} × {height} pixels, more than image.max_pixels = "
            f"{max_pixels}."
        )


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB of an image in any of Pillow's modes."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey_to_rgb(image)
    if image.mode == "CMYK":
        return image.convert("RGB")
    if "A" in image.getbands() or image.mode == "P" or "transparency" in image.info:
        rgba = image.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, rgba).convert("RGB")
    return image.convert("RGB")


def _deep_grey_to_rgb(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey (0 to 65,535) to 8 bit, rounded to nearest."""
    values = np.asarray(image)
    if values.size and (values.min() < 0 or values.max() > 65535 or image.mode == "F"):
        raise ValueError(f"mode {image.mode} with values beyond 16 bit is not supported")
    grey = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def resize_short_side(image: Image.Image, short_side: int) -> Image.Image:
    """Resize so that the short side is `short_side`, keeping the aspect (long side rounded)."""
    short = min(image.size)
    if short == short_side:
        return image
    size = tuple(max(short_side, round(side * short_side / short)) for side in image.size)
    return image.resize(size, Image.Resampling.BICUBIC)
