"""The five perturbations of the protocol (section 4, point 4), each with its severities.

Each takes a canonical RGB image and gives one of the same size. Randomness comes from a SHA-256
hash of the image id, the perturbation's name and the severity, never from order, worker or
encoder: the same degraded image reaches every encoder.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image, ImageFilter

from crsbench.files import sha256_number

REFERENCE_SIDE = 512
"""The short side in pixels that the published blur widths refer to."""


def perturb(
    image: Image.Image, condition: str, image_id: str, levels: Mapping[str, Sequence[float]]
) -> Image.Image:
    """Degrade a canonical image under a condition such as `jpeg-3`.

    levels: for each kind its severities from mild to strong, in the units of the config.
    """
    kind, severity = condition.rsplit("-", 1)
    level = levels[kind][int(severity) - 1]
    generator = np.random.Generator(np.random.Philox(sha256_number(image_id, kind, severity)))
    return PERTURBATIONS[kind](image, level, generator)


def gaussian_blur(image: Image.Image, sigma: float, _: np.random.Generator) -> Image.Image:
    """Blur by a Gaussian of `sigma` pixels of a 512-pixel short side (Pillow's box cascade)."""
    return image.filter(ImageFilter.GaussianBlur(sigma * min(image.size) / REFERENCE_SIDE))


def jpeg(image: Image.Image, quality: float, _: np.random.Generator) -> Image.Image:
    """Compress as baseline JPEG with 4:2:0 chroma at a quality of 1 to 95, and decode again."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(quality), subsampling="4:2:0")
    with Image.open(buffer) as decoded:
        return decoded.convert("RGB")


def contrast(image: Image.Image, factor: float, _: np.random.Generator) -> Image.Image:
    """Pull every value towards the image's mean over pixels and channels, keeping `factor`."""
    mean = float(np.asarray(image).mean(dtype=np.float64))
    table = [round(mean + factor * (value - mean)) for value in range(256)]
    return image.point(table * 3)


def rician_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """The magnitude of the image with complex Gaussian noise, `sigma` a share of full range.

    Gudbjartsson and Patz, Magn Reson Med 34:910 (1995). Channels draw on their own, save that a
    grey image (three equal channels) stays grey.
    """
    values = np.asarray(image)
    grey = np.array_equal(values[..., 0], values[..., 1]) and np.array_equal(
        values[..., 1], values[..., 2]
    )
    signal = (values[..., :1] if grey else values).astype(np.float32)
    scale = np.float32(255 * sigma)
    real = signal + scale * generator.standard_normal(signal.shape, dtype=np.float32)
    imaginary = scale * generator.standard_normal(signal.shape, dtype=np.float32)
    magnitude = np.sqrt(real * real + imaginary * imaginary)
    noisy = np.minimum(np.rint(magnitude), 255).astype(np.uint8)
    return Image.fromarray(np.repeat(noisy, 3, axis=2) if grey else noisy)


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
