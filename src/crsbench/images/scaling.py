"""How stored grey values become 8 bit: one rule for every image of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEEP_BITS = 16
"""What grey images of more than 8 bits are stored with."""


@dataclass(frozen=True)
class Scaling:
    """bits: of the values of 16-bit grey images, which are scaled from 0 … 2^bits − 1; None where
    the data set does not declare them, which reads as 16. percentiles: of a DICOM image without a
    window, what becomes black and white.
    """

    bits: int | None = None
    percentiles: tuple[float, float] = (0.0, 100.0)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Scaling:
        """That of a data set's registry entry."""
        low, high = spec.get("dicom_percentiles", (0.0, 100.0))
        return cls(spec.get("bits"), (float(low), float(high)))

    @property
    def full(self) -> int:
        """The value of a 16-bit grey image that becomes 255."""
        return 2 ** (self.bits or DEEP_BITS) - 1


DEFAULT = Scaling()
