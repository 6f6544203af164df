"""Degradations that are true to a modality, off in the published panel: how cameras and X-rays err.

For photographs (skin, retina): sensor noise, uneven illumination and vignetting, which act on
linear light, as a sensor counts it, and are brought back through the sRGB curve; and motion blur.
For radiographs: quantum noise, exposure, collimation, which act on pixel values that are linear in
the logarithm of the exposure, bright where little passed. Detector blur and the correlation of its
noise are left out, and so is what a camera's or a detector's software does afterwards.

Each takes and gives an 8-bit image, grey or RGB, as `crsbench.images.perturbations` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from PIL import Image

from crsbench.images.draws import REFERENCE_SIDE, normal_deviates

READ_NOISE = 0.25
"""Standard deviation of the signal-independent part of sensor noise, as a share of the level."""

DECADES = 2.0
"""Decades of exposure from the blackest to the whitest pixel of a radiograph: 100 to 1."""

LINEAR_STEPS = 65535


# --- photographs ----------------------------------------------------------------------------------


def sensor_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """Poisson-Gaussian noise of a sensor: photons and reading out.

    Foi et al., IEEE Trans Image Process 17:1737 (2008), in their normal approximation: at the
    linear signal x of 0 to 1 the variance is σ²·x + (σ/4)². sigma: standard deviation of the photon
    noise at full scale, as a share of it. Channels draw on their own; a grey image stays grey.
    """
    signal, grey = _values(image)
    spread = np.sqrt(sigma**2 * _linear() + (READ_NOISE * sigma) ** 2).astype(np.float32)
    noise = normal_deviates(generator, signal.shape)
    noise *= spread[signal]
    noise += _linear()[signal]
    return _image(_displayed(noise), grey, image)


def motion_blur(image: Image.Image, length: float, generator: np.random.Generator) -> Image.Image:
    """The mean along a straight path in a random direction, the border repeated.

    length: of the path in pixels of a 512-pixel short side.
    """
    values = np.asarray(image)
    length *= min(image.size) / REFERENCE_SIDE
    angle = math.pi * generator.random()
    reach = math.ceil(length / 2)
    steps = np.linspace(-length / 2, length / 2, 2 * reach + 1)
    across = np.rint(steps * math.cos(angle)).astype(int)
    down = np.rint(steps * math.sin(angle)).astype(int)
    edges = [(reach, reach), (reach, reach), (0, 0)][: values.ndim]
    padded = np.pad(values, edges, "edge").astype(np.uint32)
    height, width = values.shape[:2]
    total = np.zeros(values.shape, np.uint32)
    for x, y in zip(across, down, strict=True):
        total += padded[reach + y : reach + y + height, reach + x : reach + x + width]
    return Image.fromarray(((2 * total + len(steps)) // (2 * len(steps))).astype(np.uint8))


def illumination(image: Image.Image, share: float, generator: np.random.Generator) -> Image.Image:
    """Light that falls off evenly from one side to the other, in a random direction.

    share: of the light, what the darkest corner lacks.
    """
    angle = 2 * math.pi * generator.random()
    x, y = _grid(image)
    along = x * math.cos(angle) + y * math.sin(angle)
    along = (along - along.min()) / max(float(np.ptp(along)), 1e-9)
    return _lit(image, 1 - share * along)


def vignetting(image: Image.Image, share: float, _: np.random.Generator) -> Image.Image:
    """Light that falls off with the square of the distance from the centre.

    share: of the light, what the corners lack.
    """
    x, y = _grid(image)
    squared = x * x + y * y
    return _lit(image, 1 - share * squared / squared.max())


# --- radiographs ----------------------------------------------------------------------------------


def quantum_noise(image: Image.Image, quanta: float, generator: np.random.Generator) -> Image.Image:
    """The noise of few X-ray quanta, strongest where little passed.

    The number of quanta behind the value v is N(v) = quanta · 10^(−2 v / 255). A value linear in
    log N with 255 steps for two decades then has the standard deviation 255 / (2 ln 10 · √N), in
    the normal approximation. quanta: of a pixel where nothing was in the way; at least 1 is left.
    """
    signal, grey = _values(image)
    passed = np.maximum(quanta * 10.0 ** (-DECADES * np.arange(256) / 255), 1.0)
    spread = (255 / (DECADES * math.log(10)) / np.sqrt(passed)).astype(np.float32)
    noise = normal_deviates(generator, signal.shape)
    noise *= spread[signal]
    noise += signal
    return _image(np.clip(np.rint(noise), 0, 255).astype(np.uint8), grey, image)


def exposure(image: Image.Image, share: float, _: np.random.Generator) -> Image.Image:
    """Overexposure: every value is darker by a share of the full range, and black is the end.

    A longer exposure adds a constant to the logarithm; what saturates is lost.
    """
    table = [max(0, round(value - 255 * share)) for value in range(256)]
    return image.point(table * len(image.getbands()))


def collimation(image: Image.Image, keep: float, generator: np.random.Generator) -> Image.Image:
    """A collimator that lets a share of each side through, off the centre at random; else black."""
    values = np.zeros_like(np.asarray(image))
    height, width = (max(1, round(side * keep)) for side in values.shape[:2])
    top = int(generator.integers(values.shape[0] - height + 1))
    left = int(generator.integers(values.shape[1] - width + 1))
    inside = slice(top, top + height), slice(left, left + width)
    values[inside] = np.asarray(image)[inside]
    return Image.fromarray(values)


MODALITY_TRUE: Mapping[str, Callable[[Image.Image, float, np.random.Generator], Image.Image]] = {
    "sensor_noise": sensor_noise,
    "motion_blur": motion_blur,
    "illumination": illumination,
    "vignetting": vignetting,
    "quantum_noise": quantum_noise,
    "exposure": exposure,
    "collimation": collimation,
}


# --- helpers --------------------------------------------------------------------------------------


def _values(image: Image.Image) -> tuple[np.ndarray, bool]:
    """Pixel values, of one channel where all are equal, and whether that is so."""
    values = np.asarray(image)
    if values.ndim == 3 and (values == values[..., :1]).all():
        return values[..., 0], True
    return values, values.ndim == 2


def _image(values: np.ndarray, grey: bool, like: Image.Image) -> Image.Image:
    if grey and like.mode == "RGB":
        values = np.repeat(values[..., None], 3, axis=2)
    return Image.fromarray(values)


@cache
def _linear() -> np.ndarray:
    """(256,) float32: the light of each sRGB value, 0 to 1 (IEC 61966-2-1)."""
    value = np.arange(256) / 255
    above = ((value + 0.055) / 1.055) ** 2.4
    return np.where(value <= 0.04045, value / 12.92, above).astype(np.float32)


@cache
def _srgb() -> np.ndarray:
    """(65536,) uint8: the sRGB value of each step of light."""
    light = np.arange(LINEAR_STEPS + 1) / LINEAR_STEPS
    value = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(255 * value).astype(np.uint8)


def _displayed(light: np.ndarray) -> np.ndarray:
    """uint8 sRGB values of float light, clipped to 0 … 1."""
    steps = np.rint(np.clip(light, 0, 1) * np.float32(LINEAR_STEPS)).astype(np.uint16)
    return _srgb()[steps]


def _lit(image: Image.Image, gain: np.ndarray) -> Image.Image:
    """The image under a field of light (height, width)."""
    values = np.asarray(image)
    gain = gain.astype(np.float32)
    gain = gain if values.ndim == 2 else gain[..., None]
    return Image.fromarray(_displayed(_linear()[values] * gain))


def _grid(image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Pixel coordinates from the centre in units of half the longer side, (1, w) and (h, 1)."""
    half = max(image.size) / 2
    x = (np.arange(image.width) + 0.5 - image.width / 2) / half
    y = (np.arange(image.height) + 0.5 - image.height / 2) / half
    return x[None, :], y[:, None]
