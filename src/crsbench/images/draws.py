"""What perturbations share: the side that widths refer to, and random numbers with exact bits."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

REFERENCE_SIDE = 512
"""The short side in pixels that the published blur widths refer to."""


@cache
def normal_quantiles() -> np.ndarray:
    """(65536,) float32: the standard normal's quantiles at the middles of as many equal shares.

    Their variance is 0.99998, their fourth moment 2.999, the largest is 4.3.
    """
    normal = NormalDist()
    return np.float32([normal.inv_cdf((share + 0.5) / 65536) for share in range(65536)])


def random_shares(generator: np.random.Generator, count: int) -> np.ndarray:
    """(≥ count,) uint16: 16 random bits each, what a normal quantile is taken at."""
    bits = generator.bit_generator.random_raw(-(-count // 4))
    return bits.astype("<u8", copy=False).view("<u2")


def normal_deviates(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal deviates of a shape, float32: quantiles of 16 random bits."""
    count = int(np.prod(shape))
    return normal_quantiles().take(random_shares(generator, count)[:count]).reshape(shape)
