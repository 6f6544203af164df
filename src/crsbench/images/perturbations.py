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

from crsbench.files import sha256_number
from crsbench.images.draws import REFERENCE_SIDE, normal_quantiles, random_shares
from crsbench.images.modality import MODALITY_TRUE

WIDEST_BLUR = 6.0
"""A wider Gaussian, in pixels, is several after each other: variances add."""

ROWS_AT_ONCE, VALUES_AT_ONCE = 32, 65536
"""How much of an image is worked on at a time, so that it stays in the processor's cache."""


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
    values = np.asarray(image)
    for _ in range(times):
        values = _filtered(values, weights)
    return Image.fromarray(values)


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


def _filtered(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Filter (height, width[, channels]) uint8 along columns, then rows, rounding after each.

    Sums of 256 weights of 8-bit values fit 16 bits, the widest arithmetic that is fast here.
    """
    height, width = values.shape[:2]
    channels = values.size // (height * width)
    reach, line = len(weights) - 1, width * channels
    padded = np.pad(values.reshape(height, line), ((reach, reach), (0, 0)), "edge")
    padded = padded.astype(np.uint16)
    wide = np.empty((ROWS_AT_ONCE, width + 2 * reach, channels), np.uint16)
    result = np.empty((height, line), np.uint8)
    for top in range(0, height, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, height - top)
        strip = padded[top : top + rows + 2 * reach]
        part = wide[:rows]
        part[:, reach : reach + width] = _weighted(strip, weights, 1, 0).reshape(rows, width, -1)
        part[:, :reach] = part[:, reach : reach + 1]
        part[:, reach + width :] = part[:, reach + width - 1 : reach + width]
        result[top : top + rows] = _weighted(part.reshape(rows, -1), weights, channels, 1)
    return result.reshape(values.shape)


def _weighted(values: np.ndarray, weights: np.ndarray, step: int, axis: int) -> np.ndarray:
    """The filtered 16-bit values where the filter, of taps `step` apart, lies inside an axis."""
    reach = len(weights) - 1
    length = values.shape[axis] - 2 * reach * step

    def shifted(by: int) -> np.ndarray:
        start = (reach + by) * step
        kept = slice(start, start + length)
        return values[kept] if axis == 0 else values[:, kept]

    total = shifted(0) * weights[0]
    pair = np.empty_like(total)
    for distance in range(1, reach + 1):
        np.add(shifted(-distance), shifted(distance), out=pair)
        np.multiply(pair, weights[distance], out=pair)
        np.add(total, pair, out=total)
    total += np.uint16(128)
    total >>= np.uint16(8)
    return total


def jpeg(image: Image.Image, quality: float, _: np.random.Generator) -> Image.Image:
    """Compress as baseline JPEG with 4:2:0 chroma at a quality of 1 to 95, and decode again."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(quality), subsampling="4:2:0")
    decoded = Image.open(buffer)
    decoded.load()
    return decoded


def contrast(image: Image.Image, factor: float, _: np.random.Generator) -> Image.Image:
    """Pull every value towards the image's mean over pixels and channels, keeping `factor`."""
    mean = float(np.asarray(image).mean(dtype=np.float64))
    table = [round(mean + factor * (value - mean)) for value in range(256)]
    return image.point(table * len(image.getbands()))


def rician_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """The magnitude of the image with complex Gaussian noise, `sigma` a share of full range.

    Gudbjartsson and Patz, Magn Reson Med 34:910 (1995). Channels draw on their own; a grey image
    has one and stays grey. A normal deviate is a quantile of 16 random bits, two for each value.
    """
    signal = np.asarray(image).reshape(-1)
    draws = random_shares(generator, 2 * len(signal))
    deviates = np.float32(255 * sigma) * normal_quantiles()
    squares = deviates * deviates
    noisy = np.empty(len(signal), np.uint8)
    for start in range(0, len(signal), VALUES_AT_ONCE):
        part = signal[start : start + VALUES_AT_ONCE]
        middle, end = 2 * start + len(part), 2 * (start + len(part))
        magnitude = deviates.take(draws[2 * start : middle])  # the real part
        magnitude += part
        magnitude *= magnitude
        magnitude += squares.take(draws[middle:end])  # the imaginary part
        np.sqrt(magnitude, out=magnitude)
        magnitude += np.float32(0.5)
        noisy[start : start + len(part)] = np.minimum(magnitude, np.float32(255), out=magnitude)
    return Image.fromarray(noisy.reshape(np.asarray(image).shape))


def fov_crop(image: Image.Image, keep: float, generator: np.random.Generator) -> Image.Image:
    """Keep a share of each side at a random offset, resized (bicubic) to the old size."""
    width, height = (max(1, round(side * keep)) for side in image.size)
    left = int(generator.integers(image.width - width + 1))
    top = int(generator.integers(image.height - height + 1))
    box = (left, top, left + width, top + height)
    return image.resize(image.size, Image.Resampling.BICUBIC, box=box)


PERTURBATIONS: Mapping[str, Callable[[Image.Image, float, np.random.Generator], Image.Image]] = {
    "gaussian_blur": gaussian_blur,
    "jpeg": jpeg,
    "contrast": contrast,
    "rician_noise": rician_noise,
    "fov_crop": fov_crop,
}
