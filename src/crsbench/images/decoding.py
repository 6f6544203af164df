"""From a file to upright 8-bit pixels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from crsbench.core.errors import UserError
from crsbench.images.checks import check_size
from crsbench.images.dicom import decode_dicom

DICOM_SUFFIXES = (".dcm", ".dicom")

PILLOWS_PIXELS = 89_478_485
"""Pillow's own limit, at twice of which it refuses to open an image."""


def decode(file: Path, max_pixels: int) -> tuple[Image.Image, str]:
    """Decode a file to upright 8-bit RGB; also returns the mode that it is stored in.

    EXIF orientation is applied; 16-bit grey is scaled to 8 bit over its full range; transparent
    pixels are laid on black; palette, CMYK and grey become RGB. A file called `.dcm` or `.dicom` is
    read by `images.dicom`. A large JPEG is decoded whole, not at a fraction of its scale: at the
    canonical size that would differ by tens of grey levels (docs/cost.md). Raises UserError naming
    the file when it is no whole image, or when it has more than `max_pixels` pixels, and
    MissingExtraError when the extra `dicom` is needed and not installed.
    """
    image, mode = decode_as_stored(file, max_pixels)
    return to_rgb(image), mode


def decode_as_stored(file: Path, max_pixels: int) -> tuple[Image.Image, str]:
    """As `decode`, but what is stored as grey stays a grey image."""
    if file.suffix.lower() in DICOM_SUFFIXES:
        return decode_dicom(file, max_pixels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            Image.MAX_IMAGE_PIXELS = max(max_pixels, PILLOWS_PIXELS)  # the config's limit governs
            with Image.open(file) as image:
                check_size(file, image.width, image.height, max_pixels)
                image.load()
                upright = ImageOps.exif_transpose(image)
                grey = image.mode == "L" and "transparency" not in image.info
                return (upright if grey else to_rgb(upright)), image.mode
    except Image.DecompressionBombError as error:
        raise UserError(
            f"The image {file} has more pixels than image.max_pixels = {max_pixels} ({error})."
        ) from error
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"The image {file} cannot be decoded: {error}.") from error


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
