"""The scoring file: which measure makes each axis, its anchors, and the weights of the CRS."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from crsbench.config.schema import read_closed, validate
from crsbench.core.errors import UserError

AXES = ("discrimination", "calibration", "supervision", "robustness")
"""The four axes of the score, in the order of every array of axes."""

MEASURES = (
    "macro_auroc",
    "ece",
    "retention",
    "mean_drop",
    "worst_drop",
    "shift_drop",
    "drop",
)
"""The raw measures in the table of axes; an axis is one of them, normalised."""


@dataclass(frozen=True)
class Axis:
    """A measure and its fixed anchors: the values that become 0 (worst) and 1 (best)."""

    measure: str
    zero: float
    one: float

    def normalise(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Values on the line from ``zero`` to ``one``, clipped to [0, 1]; NaN stays NaN."""
        values = np.asarray(values, dtype=np.float64)
        line = (values - self.zero) / (self.one - self.zero)
        return np.clip(line, 0.0, 1.0) + 0.0  # + 0.0: no negative zero


@dataclass(frozen=True)
class Weights:
    """Weights of the three components of the CRS; they sum to one."""

    dominance: float
    proximity: float
    worst_axis: float


@dataclass(frozen=True)
class Scoring:
    """The validated content of a scoring file."""

    protocol_version: str
    axes: Mapping[str, Axis]
    """By name, in the order of :data:`AXES`."""
    weights: Weights

    def to_json(self) -> dict[str, Any]:
        """The same as plain types, in the form of the file."""
        return {
            "protocol_version": self.protocol_version,
            "axes": {name: asdict(axis) for name, axis in self.axes.items()},
            "weights": asdict(self.weights),
        }


def load_scoring(path: str | Path) -> Scoring:
    """Read a scoring file (YAML, closed by a schema; see ``config/scoring.yaml``).

    Raises:
        UserError: the file is absent or not YAML, a key is unknown or missing, a value is out of
            its range, anchors coincide, or the weights do not sum to one.
    """
    return parse_scoring(read_closed(path, "scoring"), source=str(path))


def parse_scoring(content: Mapping[str, Any], source: str) -> Scoring:
    """The same from a scoring file's plain content; ``source`` names it in errors."""
    validate(content, "scoring", source)
    axes = {
        name: Axis(axis["measure"], float(axis["zero"]), float(axis["one"]))
        for name, axis in ((name, content["axes"][name]) for name in AXES)
    }
    for name, axis in axes.items():
        if axis.zero == axis.one:
            raise UserError(
                f"{source}: axes.{name} has equal anchors zero and one, both {axis.zero:g}; they "
                "must differ."
            )
    weights = {name: float(value) for name, value in content["weights"].items()}
    total = math.fsum(weights.values())
    if not math.isclose(total, 1.0, abs_tol=1e-9):
        raise UserError(f"{source}: weights add up to {total:.12g}; they must add up to 1.")
    return Scoring(content["protocol_version"], MappingProxyType(axes), Weights(**weights))
