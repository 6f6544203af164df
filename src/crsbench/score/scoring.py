"""The scoring file: which measure makes each axis, its anchors, and the weights of the CRS."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

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
    """Read and check a scoring file (YAML; see ``config/scoring.yaml``).

    Raises:
        UserError: the file is absent or not YAML, a key is unknown or missing, a value has the
            wrong type, anchors coincide, or the weights are negative or do not sum to one.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return parse_scoring(content, source=str(path))


def parse_scoring(content: Any, source: str) -> Scoring:
    """Check the plain content of a scoring file; ``source`` names it in errors.

    Raises:
        UserError: as :func:`load_scoring`.
    """
    _require_keys(content, ("protocol_version", "axes", "weights"), source)
    version = content["protocol_version"]
    if not isinstance(version, str) or not version:
        raise UserError(f'{source}: protocol_version must be a text such as "1.0", got {version!r}')
    _require_keys(content["axes"], AXES, f"{source}: axes")
    axes = {name: _parse_axis(content["axes"][name], f"{source}: axes.{name}") for name in AXES}
    return Scoring(
        protocol_version=version,
        axes=MappingProxyType(axes),
        weights=_parse_weights(content["weights"], f"{source}: weights"),
    )


def _parse_axis(content: Any, where: str) -> Axis:
    _require_keys(content, ("measure", "zero", "one"), where)
    measure = content["measure"]
    if measure not in MEASURES:
        raise UserError(
            f"{where}.measure: {measure!r} is not a measure{_nearest(measure, MEASURES)}; "
            f"allowed are {', '.join(MEASURES)}"
        )
    zero, one = (_number(content[key], f"{where}.{key}") for key in ("zero", "one"))
    if zero == one:
        raise UserError(f"{where}: the anchors zero and one must differ, both are {zero:g}")
    return Axis(measure, zero, one)


def _parse_weights(content: Any, where: str) -> Weights:
    names = ("dominance", "proximity", "worst_axis")
    _require_keys(content, names, where)
    values = [_number(content[name], f"{where}.{name}") for name in names]
    for name, value in zip(names, values, strict=True):
        if value < 0:
            raise UserError(f"{where}.{name} must not be negative, got {value:g}")
    if not math.isclose(math.fsum(values), 1.0, abs_tol=1e-9):
        raise UserError(f"{where} must sum to one, they sum to {math.fsum(values):.12g}")
    return Weights(*values)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where} must be a finite number, got {value!r}")
    return float(value)


def _require_keys(content: Any, allowed: Collection[str], where: str) -> None:
    if not isinstance(content, Mapping):
        raise UserError(f"{where}: expected the keys {', '.join(allowed)}, got {content!r}")
    for key in content:
        if key not in allowed:
            raise UserError(
                f"{where}: unknown key {key!r}{_nearest(key, allowed)}; "
                f"allowed are {', '.join(allowed)}"
            )
    for key in allowed:
        if key not in content:
            raise UserError(f"{where}: the key {key!r} is missing")


def _nearest(name: Any, allowed: Collection[str]) -> str:
    close = difflib.get_close_matches(str(name), allowed, n=1)
    return f", did you mean {close[0]!r}" if close else ""
