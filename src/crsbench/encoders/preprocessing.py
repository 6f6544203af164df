"""Preprocessing as data, applied by one implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from crsbench.core.errors import UserError
from crsbench.images.filtering import channels_of, pixels_of, resized


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
    per_image: whether each image's channels are brought to mean 0 and standard deviation 1 before;
    a channel of one value becomes 0.
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
    per_image: bool = False

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

    @property
    def geometry(self) -> Preprocessing:
        """The same without the normalisation: encoders of one geometry share their pixels."""
        return replace(self, mean=(0, 0, 0), std=(1, 1, 1), white=1, per_image=False)

    def __call__(self, image: Image.Image) -> np.ndarray:
        """A grey or RGB image as (3, size, size) float32."""
        batch = self.normalise(torch.from_numpy(self.pixels(image)[None]))
        return np.ascontiguousarray(batch[0].numpy())

    def pixels(self, image: Image.Image) -> np.ndarray:
        """A grey or RGB image as (size, size, 3) on the scale of 0-255, all but normalised.

        8-bit integers where the resize rounds to them, a quarter of the bytes to hand on; float32
        without antialiasing.
        """
        if self.stretch:
            image = _stretched(image)
        if self.channels == "grey":
            image = image.convert("L")
        if self.resize == "pad":
            image = self._padded(image)
        values = self._square(image)
        if values.ndim == 2:
            values = np.repeat(values[..., None], 3, axis=2)
        return np.array(values)  # a copy: Pillow lends its memory to be read only

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """(n, size, size, 3) pixels as (n, 3, size, size) float32 in channels-last memory.

        Divisions are by tensors: by a number, a GPU would multiply by its reciprocal.
        """
        white, mean, std = (
            torch.tensor(part, dtype=torch.float32, device=pixels.device)
            for part in ([255] * 3, self.mean, self.std)
        )
        values = pixels.to(torch.float32, copy=True)
        if self.white == 1:
            values.div_(white)
        if self.per_image:
            values = _standardised(pixels)
        return values.sub_(mean).div_(std).permute(0, 3, 1, 2)

    def _padded(self, image: Image.Image) -> Image.Image:
        if image.mode == "L" and len(set(self.fill)) > 1:
            image = image.convert("RGB")
        if self.pad_to is not None:
            # Cut down, from a ratio in floating point, as CheXzero's own code does.
            ratio = self.pad_to / max(image.size)
            size = tuple(max(1, int(side * ratio)) for side in image.size)
            image = image.resize(size, Image.Resampling.LANCZOS)
        side = self.pad_to or max(image.size)
        fill = self.fill[0] if image.mode == "L" else self.fill
        square = Image.new(image.mode, (side, side), fill)
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square

    def _square(self, image: Image.Image) -> np.ndarray:
        """(size, size[, 3]) on the scale of 0–255."""
        if self.resize != "shortest":
            return self._resized(image, (self.size, self.size), (0, 0))
        short = min(image.size)
        # The long side is cut down, not rounded, as torchvision and transformers do: the owners'
        # features were made so.
        size = tuple(side * self.resize_to // short for side in image.size)
        return self._resized(image, size, tuple(self._corner(side - self.size) for side in size))

    def _corner(self, excess: int) -> int:
        return round(excess / 2) if self.crop_corner == "rounded" else excess // 2

    def _resized(
        self, image: Image.Image, size: tuple[int, int], corner: tuple[int, int]
    ) -> np.ndarray:
        """The square at a corner (left, top) of the image brought to a size (width, height)."""
        left, top = corner
        right, bottom = left + self.size, top + self.size
        if self.antialias:
            window = (left, top, right, bottom)
            made = resized(pixels_of(image), size, self.interpolation, window=window)
            return channels_of(made)
        values = torch.from_numpy(np.array(image, dtype=np.float32))
        planes = values[None] if values.ndim == 2 else values.permute(2, 0, 1)
        sampled = torch.nn.functional.interpolate(
            planes[None], size[::-1], mode=self.interpolation, align_corners=False
        )[0, :, top:bottom, left:right]
        return (sampled[0] if values.ndim == 2 else sampled.permute(1, 2, 0)).numpy()


def _standardised(pixels: torch.Tensor) -> torch.Tensor:
    """(n, height, width, 3) with each image's channels at mean 0 and standard deviation 1, float32.

    Sums of 8-bit numbers and of their squares are exact in float64, so no other image of the batch
    has a part in them.
    """
    values = pixels.double()
    count = values.shape[1] * values.shape[2]
    centre = values.sum(dim=(1, 2), keepdim=True) / count
    variance = values.square().sum(dim=(1, 2), keepdim=True) / count - centre.square()
    spread = variance.clamp(min=0).sqrt()
    return ((values - centre) / spread.where(spread > 0, torch.ones_like(spread))).float()


def _stretched(image: Image.Image) -> Image.Image:
    """The values' range brought to 0–255 and cut to 8 bits, as BioViL's own reader does."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low == high:  # an image of one value has no range: it becomes black
        return Image.new(image.mode, image.size)
    shifted = np.arange(256).clip(low, high) - low
    table = (shifted / (high - low) * 255).astype(np.uint8)
    return image.point(table.tolist() * len(image.getbands()))
