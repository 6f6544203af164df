"""Drawing tools: lengths in units of the short side, the origin at the centre, y points down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Plane = NDArray[np.float32]
"""One channel, (height, width)."""
Colour = tuple[float, float, float]
Point = tuple[float, float]


def ramp(value: Plane, low: float, high: float) -> Plane:
    """Smooth step from 0 at ``low`` to 1 at ``high`` (``low`` may be the larger)."""
    t = np.clip((value - low) * (1 / (high - low)), 0, 1)
    return t * t * (3 - 2 * t)


def wave(turns: Plane) -> Plane:
    """A sine-like wave of period 1 in [-1, 1], made of parabolas (no libm, so no ULP doubt)."""
    t = turns - np.floor(turns) - 0.5
    return 16 * t * (np.abs(t) - 0.5)


class Sheet:
    """The pixel grid of one picture and what can be laid on it."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.short = min(height, width)
        self.x, self.y = _grid(height, width)

    def noise(self, random: np.random.Generator, cells: int) -> Plane:
        """Smooth value noise in [-1, 1] with ``cells`` lattice cells along the short side."""
        rows, row_part = _lattice(self.height, self.short, cells)
        columns, column_part = _lattice(self.width, self.short, cells)
        side = 2 * cells + 2  # more than any picture needs, so that a size changes no later draw
        knots = random.random((side, side), dtype=np.float32) * 2 - 1
        lines = knots[rows]
        lines = lines + (knots[rows + 1] - lines) * row_part[:, None]
        left = lines[:, columns]
        return left + (lines[:, columns + 1] - left) * column_part

    def grain(self, random: np.random.Generator) -> Plane:
        """Near-Gaussian pixel noise of unit variance: the sum of four uniform bytes."""
        words = random.integers(0, 1 << 32, (self.height, self.width), dtype=np.uint32)
        total = (words & 255) + (words >> 8 & 255) + (words >> 16 & 255) + (words >> 24)
        return (total.astype(np.float32) - 510) / 147.8

    def spot(self, x: float, y: float, rx: float, ry: float, angle: float = 0.0) -> Plane:
        """Squared distance from (x, y) in units of an ellipse's half axes: 1 on its rim."""
        c, s = math.cos(angle), math.sin(angle)
        dx, dy = self.x - x, self.y - y
        a = dx * (c / rx) + dy * (s / rx)
        b = dy * (c / ry) - dx * (s / ry)
        return a * a + b * b

    def pen(self) -> Pen:
        return Pen(self)


@lru_cache(maxsize=8)
def _grid(height: int, width: int) -> tuple[Plane, Plane]:
    short = min(height, width)
    x = (np.arange(width, dtype=np.float32) + (0.5 - width / 2)) / short
    y = (np.arange(height, dtype=np.float32) + (0.5 - height / 2)) / short
    return x[None, :], y[:, None]


@lru_cache(maxsize=128)
def _lattice(length: int, short: int, cells: int) -> tuple[NDArray[np.intp], Plane]:
    """Index of the lattice cell of each pixel along a side, and its smoothed place inside."""
    place = (np.arange(length, dtype=np.float32) + 0.5) * (cells / short)
    index = np.floor(place)
    part = place - index
    return index.astype(np.intp), part * part * (3 - 2 * part)


class Pen:
    """Strokes and discs on an empty mask, antialiased by drawing three times finer."""

    FINER = 3

    def __init__(self, sheet: Sheet) -> None:
        self._scale = sheet.short * self.FINER
        self._image = Image.new("L", (sheet.width * self.FINER, sheet.height * self.FINER))
        self._draw = ImageDraw.Draw(self._image)

    def _pixel(self, point: Point) -> Point:
        return (
            point[0] * self._scale + self._image.width / 2,
            point[1] * self._scale + self._image.height / 2,
        )

    def line(self, points: Sequence[Point], width: float, value: float = 1.0) -> None:
        """A polyline; one thinner than the finest pixel is drawn fainter instead."""
        wide = width * self._scale
        ink = round(255 * value * min(wide, 1.0))
        self._draw.line([self._pixel(p) for p in points], fill=ink, width=max(round(wide), 1))

    def disc(self, x: float, y: float, rx: float, ry: float, value: float = 1.0) -> None:
        (left, top), (right, bottom) = self._pixel((x - rx, y - ry)), self._pixel((x + rx, y + ry))
        self._draw.ellipse((left, top, right, bottom), fill=round(255 * value))

    def mask(self) -> Plane:
        """What was drawn, in [0, 1]."""
        small = self._image.reduce(self.FINER)
        return np.asarray(small, dtype=np.float32) / 255


def curve(start: Point, bend: Point, end: Point, steps: int = 12) -> list[Point]:
    """Points of a quadratic Bézier curve."""
    points = []
    for step in range(steps + 1):
        t = step / steps
        a, b, c = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
        x, y = (a * p + b * q + c * r for p, q, r in zip(start, bend, end, strict=True))
        points.append((x, y))
    return points


def twig(
    pen: Pen,
    random: np.random.Generator,
    start: Point,
    heading: float,
    width: float,
    length: float,
    depth: int,
) -> None:
    points = [start]
    for _ in range(4):
        heading += between(random, -0.45, 0.45)
        x, y = points[-1]
        points.append((x + length / 4 * math.cos(heading), y + length / 4 * math.sin(heading)))
    pen.line(points, width)
    if depth > 1:
        for side in (-1, 1):
            turned = heading + side * between(random, 0.3, 0.9)
            twig(pen, random, points[-1], turned, width * 0.65, length * 0.65, depth - 1)


def between(random: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * random.random()


def mix(rgb: NDArray[np.float32], mask: Plane, colour: Colour) -> None:
    """Lay an opaque colour over the picture (3, height, width), in place."""
    for channel, value in zip(rgb, colour, strict=True):
        channel += mask * (value - channel)


def absorb(rgb: NDArray[np.float32], mask: Plane, passed: Colour) -> None:
    """Filter the picture through a pigment that lets ``passed`` of each channel through."""
    for channel, value in zip(rgb, passed, strict=True):
        channel *= 1 - mask * (1 - value)


def to_image(planes: NDArray[np.float32]) -> Image.Image:
    """(3, height, width) or (height, width) in [0, 1] to an 8-bit RGB image."""
    pixels = (np.clip(planes, 0, 1) * 255 + 0.5).astype(np.uint8)
    if pixels.ndim == 2:
        return Image.fromarray(pixels).convert("RGB")
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
