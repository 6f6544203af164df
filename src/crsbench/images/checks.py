"""Why an image is refused, whatever decodes it."""

from __future__ import annotations

from pathlib import Path

from crsbench.core.errors import UserError


class MissingExtraError(UserError):
    """An optional extra isn't installed: no fault of the image that needs it."""


def check_size(file: Path, width: int, height: int, max_pixels: int) -> None:
    """Raise UserError naming the file when it has more than `max_pixels` pixels."""
    if width * height > max_pixels:
        raise UserError(
            f"The image {file} has {width} × {height} pixels, more than image.max_pixels = "
            f"{max_pixels}."
        )
