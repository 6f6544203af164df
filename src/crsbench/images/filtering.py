"""Separable filters of 8-bit images in integers: resizing and blurring, compiled by numba.

Both are weighted sums of neighbours along one axis and then the other, rounded to 8 bits after
each. A resize gives the very bytes of Pillow's, which the encoders' owners made their features
with, and computes only the part of the result that is wanted.

Pixels are (height, width) uint8, or uint32 of red, green, blue and an unused byte: a pixel is one
number, so that turning an image on its side moves numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from PIL import Image

BYTES_AT_ONCE, ROWS_AT_ONCE = 4096, 64
"""How much is worked on at a time, of a line and of an image that is turned on its side: what is
needed again stays in the processor's caches."""

RESIZE_BITS = 22
"""The precision of Pillow's weights: as much as 32-bit sums of 8-bit values bear."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code, kept beside its file or in the user's cache if it can be."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # numba finds no folder to write to: compiled anew in every process
        return njit(function)


@dataclass(frozen=True)
class Taps:
    """What each of n results is made of: a run of neighbours and their weights.

    starts, counts: (n,) int64, the first neighbour and how many; weights: (n, most), in units of
    2^-bits; their type is the one to sum in.
    """

    starts: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    bits: int

    def only(self, start: int, end: int) -> Taps:
        """Those of the results from `start` to before `end`."""
        kept = slice(start, end)
        return Taps(self.starts[kept], self.counts[kept], self.weights[kept], self.bits)

    def needed(self) -> tuple[int, int]:
        """The first neighbour that is used and the one after the last."""
        return int(self.starts.min()), int((self.starts + self.counts).max())

    def shifted(self, by: int) -> Taps:
        """Those of a line that lacks its first neighbours."""
        return Taps(self.starts - by, self.counts, self.weights, self.bits)


def pixels_of(image: Image.Image) -> np.ndarray:
    """The pixels of a grey or RGB image, to be read only."""
    kind, raw = (np.uint8, "L") if image.mode == "L" else (np.uint32, "RGBX")
    return np.frombuffer(image.tobytes("raw", raw), kind).reshape(image.height, image.width)


def image_of(pixels: np.ndarray) -> Image.Image:
    """The grey or RGB image of pixels."""
    mode, raw = ("L", "L") if pixels.dtype == np.uint8 else ("RGB", "RGBX")
    data = np.ascontiguousarray(pixels)
    return Image.frombytes(mode, pixels.shape[::-1], data.view(np.uint8).data, "raw", raw)


def channels_of(pixels: np.ndarray) -> np.ndarray:
    """Pixels as values (height, width), or (height, width, 3) without the unused byte."""
    if pixels.dtype == np.uint8:
        return pixels
    return np.ascontiguousarray(pixels).view(np.uint8).reshape(*pixels.shape, 4)[..., :3]


def resized(
    pixels: np.ndarray,
    size: tuple[int, int],
    filter_name: str,
    *,
    box: tuple[int, int, int, int] | None = None,
    window: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
    """Resize to a size (width, height), antialiased: what Pillow's `resize` gives, byte for byte.

    filter_name: `bilinear` or `bicubic`. box: the part (left, top, right, bottom) of the image that
    becomes the result, all of it by default; window: the part of the result that is wanted.
    As in Pillow 13, a much taller image is made less tall first, any other narrower first.
    """
    height, width = pixels.shape
    left, top, right, bottom = box or (0, 0, width, height)
    west, north, east, south = window or (0, 0, *size)
    across = resize_taps(width, left, right, size[0], filter_name).only(west, east)
    down = resize_taps(height, top, bottom, size[1], filter_name).only(north, south)
    if size[1] < height and height - size[1] > 2 * (width - size[0]):
        left, right = across.needed()
        pixels = _filtered_down(np.ascontiguousarray(pixels[:, left:right]), down)
        return _filtered_across(pixels, across.shifted(left))
    top, bottom = down.needed()
    return _filtered_down(_filtered_across(pixels[top:bottom], across), down.shifted(top))


def blurred(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Filter along columns, then rows, by a symmetric filter; the border is repeated.

    weights: (r + 1,) the centre's and one side's, in 256ths; 256 in all.
    """
    height, width = pixels.shape
    pixels = _filtered_down(pixels, _symmetric_taps(height, tuple(weights.tolist())))
    return _filtered_across(pixels, _symmetric_taps(width, tuple(weights.tolist())))


def _filtered_across(pixels: np.ndarray, taps: Taps) -> np.ndarray:
    """Pixels (height, n), each a weighted sum of those in its row; strip by strip, on its side."""
    left, right = taps.needed()
    taps = taps.shifted(left)
    result = np.empty((len(pixels), len(taps.starts)), pixels.dtype)
    for top in range(0, len(pixels), ROWS_AT_ONCE):
        strip = np.ascontiguousarray(pixels[top : top + ROWS_AT_ONCE, left:right].T)
        result[top : top + ROWS_AT_ONCE] = _filtered_down(strip, taps).T
    return result


def _filtered_down(pixels: np.ndarray, taps: Taps) -> np.ndarray:
    """Pixels (n, width), each a weighted sum of those in its column."""
    result = np.empty((len(taps.starts), pixels.shape[1]), pixels.dtype)
    _weighted_sums(
        pixels.view(np.uint8), taps.starts, taps.counts, taps.weights, taps.bits,
        result.view(np.uint8),
    )  # fmt: skip
    return result


@compiled
def _weighted_sums(
    values: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    weights: np.ndarray,
    bits: int,
    result: np.ndarray,
) -> None:
    """Fill the result (n, line) uint8 from values (lines, line) uint8, rounding half up."""
    sums = np.empty(BYTES_AT_ONCE, weights.dtype)
    for left in range(0, values.shape[1], BYTES_AT_ONCE):
        width = min(BYTES_AT_ONCE, values.shape[1] - left)
        for row in range(len(starts)):
            sums[:width] = 1 << (bits - 1)
            for tap in range(counts[row]):
                weight = weights[row, tap]
                line = values[starts[row] + tap, left : left + width]
                for i in range(width):
                    sums[i] += line[i] * weight
            made = result[row, left : left + width]
            for i in range(width):
                made[i] = min(max(sums[i] >> bits, 0), 255)


def _bicubic(x: np.ndarray) -> np.ndarray:
    """Keys, IEEE Trans Acoust Speech Signal Process 29:1153 (1981), with a = -1/2."""
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _bilinear(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, 1 - x)


FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
}
"""Each filter, by the distance from its centre, and its reach, in pixels of the coarser grid."""


@lru_cache(256)
def resize_taps(length: int, start: int, end: int, wanted: int, filter_name: str) -> Taps:
    """Those that bring the pixels from `start` to `end` of a line to `wanted` pixels.

    The order of the operations is Pillow's: its weights, in 2^-22, are these to the last bit.
    """
    function, reach = FILTERS[filter_name]
    scale = (end - start) / wanted
    stretch = max(scale, 1.0)
    reach *= stretch
    centres = start + (np.arange(wanted) + 0.5) * scale
    starts = np.maximum(centres - reach + 0.5, 0).astype(np.int64)
    counts = np.minimum(centres + reach + 0.5, length).astype(np.int64) - starts
    taps = np.arange(math.ceil(reach) * 2 + 1)
    distances = np.abs((taps + starts[:, None] - centres[:, None] + 0.5) * (1 / stretch))
    shares = np.where(taps < counts[:, None], function(distances), 0.0)
    total = np.zeros(wanted)
    for tap in taps:  # one after the other: `sum` adds in another order
        total += shares[:, tap]
    exact = shares / total[:, None] * (1 << RESIZE_BITS)
    weights = (exact + np.where(exact < 0, -0.5, 0.5)).astype(np.int32)
    return Taps(starts, counts, weights, RESIZE_BITS)


@lru_cache(256)
def _symmetric_taps(length: int, weights: tuple[int, ...]) -> Taps:
    """A filter with the border repeated: what lies beyond is added to the border's weight."""
    reach = len(weights) - 1
    taps = np.array([*weights[:0:-1], *weights], np.uint16)
    table = np.zeros((length, min(length, len(taps))), np.uint16)
    places = np.arange(length)
    starts = np.clip(places - reach, 0, max(0, length - len(taps)))
    for tap, weight in enumerate(taps):
        seen = np.clip(places + tap - reach, 0, length - 1)
        np.add.at(table, (places, seen - starts), weight)
    return Taps(starts, np.full(length, table.shape[1]), table, 8)
