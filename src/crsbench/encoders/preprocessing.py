"""Preprocessing as data, applied by one implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocessing:
    """An encoder's own preprocessing.

    resize: `shortest` brings the short side to `resize_to` pixels and crops the centre `size`
    square, `squash` brings the image to the square without regard to its aspect; both with
    antialiasing. mean, std: by channel, of values in [0, 1].
    """

    resize: Literal["shortest", "squash"]
    size: int
    resize_to: int
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Preprocessing:
        """From a registry entry's `preprocessing`; `resize_to` defaults to `size`."""
        return cls(
            spec["resize"],
            spec["size"],
            spec.get("resize_to", spec["size"]),
            spec["interpolation"],
            tuple(spec["mean"]),
            tuple(spec["std"]),
        )

    def __call__(self, image: Image.Image) -> np.ndarray:
        """An RGB image as (3, size, size) float32."""
        image = self._square(image)
        values = np.asarray(image, dtype=np.float32) / np.float32(255)
        normalised = (values - np.float32(self.mean)) / np.float32(self.std)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def _square(self, image: Image.Image) -> Image.Image:
        filter_ = _FILTERS[self.interpolation]
        if self.resize == "squash":
            return image.resize((self.size, self.size), filter_)
        short = min(image.size)
        # The long side is cut down, not rounded, and the crop's corner rounded half to even, as
        # torchvision does: the owners' features were made so.
        size = tuple(side * self.resize_to // short for side in image.size)
        if size != image.size:
            image = image.resize(size, filter_)
        left, top = (round((side - self.size) / 2) for side in image.size)
        return image.crop((left, top, left + self.size, top + self.size))
