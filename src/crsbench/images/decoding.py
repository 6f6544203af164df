"""From a file to upright 8-bit pixels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from crsbench.core.errors import UserError
from crsbench.images.checks import check_size
from crsbench.images.dicom import decode_dicom
from crsbench.images.scaling import DEEP_BITS, DEFAULT, Scaling

DICOM_SUFFIXES = (".dcm", ".dicom")

PILLOWS_PIXELS = 89_478_485
"""Pillow's own limit, at twice of which it refuses to open an image."""


class Decoded(NamedTuple):
    """An upright 8-bit image, grey or RGB; the mode that it is stored in; and of 16-bit grey the
    largest value that is stored, else 0.
    """

    image: Image.Image
    mode: str
    largest: int = 0


def decode(file: Path, max_pixels: int, scaling: Scaling = DEFAULT) -> tuple[Image.Image, str]:
    """Decode a file to upright 8-bit RGB; also returns the mode that it is stored in.

    EXIF orientation is applied; 16-bit grey is scaled to 8 bit over the range that `scaling` says;
    transparent pixels are laid on black; palette, CMYK and grey become RGB. A file called `.dcm` or
    `.dicom` is read by `images.dicom`. A large JPEG is decoded whole, not at a fraction of its
    scale: at the canonical size that would differ by tens of grey levels (docs/cost.md). Raises
    UserError naming the file when it is no whole image of one frame, when it has more than
    `max_pixels` pixels, or values beyond the declared bits, and MissingExtraError when the extra
    `dicom` is needed and not installed.
    """
    image, mode, _ = decode_as_stored(file, max_pixels, scaling)
    return to_rgb(image), mode


def decode_as_stored(file: Path, max_pixels: int, scaling: Scaling = DEFAULT) -> Decoded:
    """As `decode`, but what is stored as grey stays a grey image."""
    if file.suffix.lower() in DICOM_SUFFIXES:
        return Decoded(*decode_dicom(file, max_pixels, scaling.percentiles))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            Image.MAX_IMAGE_PIXELS = max(max_pixels, PILLOWS_PIXELS)  # the config's limit governs
            with Image.open(file) as image:
                check_size(file, image.width, image.height, max_pixels)
                _check_form(image, scaling)
                image.load()
                upright = ImageOps.exif_transpose(image)
                if _is_deep_grey(image):
                    return Decoded(_eight_bit(upright, scaling), image.mode, _largest(upright))
                grey = image.mode == "L" and "transparency" not in image.info
                return Decoded(upright if grey else to_rgb(upright), image.mode)
    except Image.DecompressionBombError as error:
        raise UserError(
            f"The image {file} has more pixels than image.max_pixels = {max_pixels} ({error})."
        ) from error
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"The image {file} cannot be decoded: {error}.") from error


def _check_form(image: Image.Image, scaling: Scaling) -> None:
    """Refuse what would be read in part: of several frames, or of declared bits in colour."""
    if getattr(image, "is_animated", False) and image.format != "MPO":  # a camera's: a preview
        raise ValueError("it has more than one frame; allowed is one image")
    deep_colour = not _is_deep_grey(image) and any(";16" in str(tile[3]) for tile in image.tile)
    if deep_colour and scaling.full < 2**DEEP_BITS - 1:
        raise ValueError(
            f"its colours have 16 bits, which are read over their full range; allowed with "
            f"bits: {scaling.bits} are 16-bit grey and 8-bit images"
        )


def _is_deep_grey(image: Image.Image) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def to_rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB of an image in any of Pillow's modes; 16-bit grey over its full range."""
    if image.mode == "RGB":
        return image
    if _is_deep_grey(image):
        return _eight_bit(image, DEFAULT).convert("RGB")
    if image.mode == "CMYK":
        return image.convert("RGB")
    if "A" in image.getbands() or image.mode == "P" or "transparency" in image.info:
        rgba = image.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bit(image: Image.Image, scaling: Scaling) -> Image.Image:
    """Scale 16-bit grey (0 to 2^bits − 1) to 8 bit, rounded to nearest."""
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 2**DEEP_BITS - 1:
        raise ValueError(
            f"its values of mode {image.mode} go from {values.min():g} to {values.max():g}; "
            f"allowed are whole numbers of 0 to {2**DEEP_BITS - 1}"
        )
    if values.max() > scaling.full:
        raise ValueError(
            f"its largest value is {values.max()}; allowed with bits: {scaling.bits} is at most "
            f"{scaling.full}"
        )
    # round(255 · value / full), in whole numbers
    grey = (values.astype(np.uint32) * 255 + scaling.full // 2) // scaling.full
    return Image.fromarray(grey.astype(np.uint8))


def _largest(image: Image.Image) -> int:
    return int(np.asarray(image).max())
