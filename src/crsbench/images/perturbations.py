"""The five perturbations of the protocol (section 4, point 4), each with its severities.

Those that are true to a modality are in `crsbench.images.modality`.

Each takes a canonical image, grey or RGB, and gives one of the same size and mode. Randomness comes
from a SHA-256 hash of the image id, the perturbation's name and the severity, never from order,
worker or encoder: the same degraded image reaches every encoder. The arithmetic is in integers or
exactly rounded, so that the bytes are the same on every machine.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from PIL import Image

from crsbench.core.hashing import sha256_number
from crsbench.images.draws import REFERENCE_SIDE, normal_quantiles, random_shares
from crsbench.images.filtering import blurred, compiled, image_of, pixels_of, resized
from crsbench.images.modality import MODALITY_TRUE

WIDEST_BLUR = 6.0
"""A wider Gaussian, in pixels, is several after each other: variances add."""

VALUES_AT_ONCE = 65536
"""How many values of an image draw their noise together."""


def perturb(
    image: Image.Image, condition: str, image_id: str, levels: Mapping[str, Sequence[float]]
) -> Image.Image:
    """Degrade a canonical image under a condition such as `jpeg-3`.

    levels: for each kind its severities from mild to strong, in the units of the config.
    """
    kind, severity = condition.rsplit("-", 1)
    level = levels[kind][int(severity) - 1]
    generator = np.random.Generator(np.random.SFC64(sha256_number(image_id, kind, severity)))
    return (PERTURBATIONS[kind] if kind in PERTURBATIONS else MODALITY_TRUE[kind])(
        image, level, generator
    )


def gaussian_blur(image: Image.Image, sigma: float, _: np.random.Generator) -> Image.Image:
    """Blur by a Gaussian of `sigma` pixels of a 512-pixel short side; the border is repeated."""
    sigma *= min(image.size) / REFERENCE_SIDE
    times = max(1, math.ceil((sigma / WIDEST_BLUR) ** 2))
    weights = gaussian_weights(sigma / math.sqrt(times))
    pixels = pixels_of(image)
    for _ in range(times):
        pixels = blurred(pixels, weights)
    return image_of(pixels)


def gaussian_weights(sigma: float) -> np.ndarray:
    """(r + 1,) uint16: the centre and one side of a Gaussian filter, in 256ths, 256 in all.

    A weight is the Gaussian's integral over its pixel. Cumulated, the weights are within half a
    256th of the Gaussian's own: no error adds up.
    """
    normal = NormalDist(0, sigma)
    edges = [normal.cdf(pixel + 0.5) - 0.5 for pixel in range(math.ceil(4 * sigma) + 1)]
    weights = np.diff(np.rint(np.multiply(edges, 256)), prepend=0)
    weights[0] *= 2
    weights[-1] += 128 - weights[0] / 2 - weights[1:].sum()
    return np.trim_zeros(weights, "b").astype(np.uint16)


def jpeg(image: Image.Image, quality: float, _: np.random.Generator) -> Image.Image:
    """Compress as baseline JPEG with 4:2:0 chroma at a quality of 1 to 95, and decode again."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(quality), subsampling="4:2:0")
    decoded = Image.open(buffer)
    decoded.load()
    return decoded


def contrast(image: Image.Image, factor: float, _: np.random.Generator) -> Image.Image:
    """Pull every value towards the image's mean over pixels and channels, keeping `factor`."""
    counts = np.reshape(image.histogram(), (-1, 256)).sum(axis=0)
    mean = int(counts @ np.arange(256)) / int(counts.sum())
    table = [round(mean + factor * (value - mean)) for value in range(256)]
    return image.point(table * len(image.getbands()))


def rician_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """The magnitude of the image with complex Gaussian noise, `sigma` a share of full range.

    Gudbjartsson and Patz, Magn Reson Med 34:910 (1995). Channels draw on their own; a grey image
    has one and stays grey. A normal deviate is a quantile of 16 random bits, two for each value.
    """
    signal = np.frombuffer(image.tobytes(), np.uint8)
    draws = random_shares(generator, 2 * len(signal))
    noisy = np.empty_like(signal)
    _rician_magnitude(signal, draws, np.float32(255 * sigma) * normal_quantiles(), noisy)
    return Image.frombytes(image.mode, image.size, noisy.data)


@compiled
def _rician_magnitude(
    signal: np.ndarray, draws: np.ndarray, deviates: np.ndarray, noisy: np.ndarray
) -> None:
    """Fill `noisy` (n,) uint8 from the signal (n,) uint8 and 2n places in a table of deviates.

    Of each `VALUES_AT_ONCE` values, the real parts' places come first, then the imaginary parts'.
    """
    for start in range(0, len(signal), VALUES_AT_ONCE):
        count = min(VALUES_AT_ONCE, len(signal) - start)
        middle = 2 * start + count
        part, made = signal[start : start + count], noisy[start : start + count]
        for i in range(count):
            real = deviates[draws[2 * start + i]] + np.float32(part[i])
            imaginary = deviates[draws[middle + i]]
            magnitude = np.sqrt(real * real + imaginary * imaginary)
            made[i] = np.uint8(min(magnitude + np.float32(0.5), np.float32(255)))


def fov_crop(image: Image.Image, keep: float, generator: np.random.Generator) -> Image.Image:
    """Keep a share of each side at a random offset, resized (bicubic) to the old size."""
    width, height = (max(1, round(side * keep)) for side in image.size)
    left = int(generator.integers(image.width - width + 1))
    top = int(generator.integers(image.height - height + 1))
    box = (left, top, left + width, top + height)
    return image_of(resized(pixels_of(image), image.size, "bicubic", box=box))


PERTURBATIONS: Mapping[str, Callable[[Image.Image, float, np.random.Generator], Image.Image]] = {
    "gaussian_blur": gaussian_blur,
    "jpeg": jpeg,
    "contrast": contrast,
    "rician_noise": rician_noise,
    "fov_crop": fov_crop,
}
