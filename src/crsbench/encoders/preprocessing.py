"""Preprocessing as data, applied by one implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from crsbench.errors import UserError

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocessing:
    """An encoder's own preprocessing, in the order in which it is applied.

    stretch: whether the image's own darkest and brightest values become 0 and 255.
    channels: `rgb`, or `grey` for the luminance in all three channels.
    resize: `shortest` brings the short side to `resize_to` pixels and crops the centre `size`
    square; `squash` brings the image to the square without regard to its aspect; `pad` centres it
    on the square of its long side, the rest in the colour `fill` (0–255), and brings that to
    `size`; with `pad_to` the long side is brought to that many pixels before, by a Lanczos filter.
    interpolation, antialias: of the resize. With antialiasing it is Pillow's, on 8-bit values;
    without, it is torch's sampling at the new grid, on real values.
    crop_corner: how half a pixel of the centre crop's corner goes: `rounded` half to even, as
    torchvision does, or `floored`, as the image processors of transformers do.
    white: what the value 255 becomes before `mean` and `std`, by channel, are applied: 1 or 255.
    """

    resize: Literal["shortest", "squash", "pad"]
    size: int
    resize_to: int
    interpolation: Literal["bilinear", "bicubic"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    stretch: bool = False
    channels: Literal["rgb", "grey"] = "rgb"
    fill: tuple[int, int, int] | None = None
    pad_to: int | None = None
    antialias: bool = True
    crop_corner: Literal["rounded", "floored"] = "rounded"
    white: Literal[1, 255] = 1

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Preprocessing:
        """From a registry entry's `preprocessing`; `resize_to` defaults to `size`."""
        values = {key: tuple(v) if isinstance(v, list) else v for key, v in spec.items()}
        values.setdefault("resize_to", spec["size"])
        if values["resize_to"] < spec["size"]:
            raise UserError(
                f"preprocessing.resize_to is {values['resize_to']}; it must be `size` "
                f"({spec['size']}) or more, for the crop to lie inside the image."
            )
        return cls(**values)

    def __call__(self, image: Image.Image) -> np.ndarray:
        """An RGB image as (3, size, size) float32."""
        if self.stretch:
            image = _stretched(image)
        if self.channels == "grey":
            image = image.convert("L").convert("RGB")
        if self.resize == "pad":
            image = self._padded(image)
        values = self._square(image)
        if self.white == 1:
            values = values / np.float32(255)
        normalised = (values - np.float32(self.mean)) / np.float32(self.std)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1))

    def _padded(self, image: Image.Image) -> Image.Image:
        if self.pad_to is not None:
            # Cut down, from a ratio in floating point, as CheXzero's own code does.
            ratio = self.pad_to / max(image.size)
            size = tuple(max(1, int(side * ratio)) for side in image.size)
            image = image.resize(size, Image.Resampling.LANCZOS)
        side = self.pad_to or max(image.size)
        square = Image.new("RGB", (side, side), self.fill)
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square

    def _square(self, image: Image.Image) -> np.ndarray:
        """(size, size, 3) float32 on the scale of 0–255."""
        if self.resize != "shortest":
            return self._resized(image, (self.size, self.size))
        short = min(image.size)
        # The long side is cut down, not rounded, as torchvision and transformers do: the owners'
        # features were made so.
        size = tuple(side * self.resize_to // short for side in image.size)
        values = self._resized(image, size)
        left, top = (self._corner(side - self.size) for side in size)
        return values[top : top + self.size, left : left + self.size]

    def _corner(self, excess: int) -> int:
        return round(excess / 2) if self.crop_corner == "rounded" else excess // 2

    def _resized(self, image: Image.Image, size: tuple[int, int]) -> np.ndarray:
        if self.antialias:
            if size != image.size:
                image = image.resize(size, _FILTERS[self.interpolation])
            return np.asarray(image, dtype=np.float32)
        values = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)
        sampled = torch.nn.functional.interpolate(
            values[None], size[::-1], mode=self.interpolation, align_corners=False
        )
        return sampled[0].permute(1, 2, 0).numpy()


def _stretched(image: Image.Image) -> Image.Image:
    """The values' range brought to 0–255 and cut to 8 bits, as BioViL's own reader does."""
    values = np.asarray(image, dtype=np.float64)
    values = values - values.min()
    if values.max() > 0:  # an image of one value has no range: it becomes black
        values = values / values.max() * 255
    return Image.fromarray(values.astype(np.uint8))
