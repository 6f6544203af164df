"""Names that the whole library shares, the nearest of some known names, a number in words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

CLEAN = "clean"
"""The condition of images as they are."""

CALIBRATION = "calibration"
"""What kept predictions of the calibration set are filed under, beside those of the conditions."""

AGGREGATE = "aggregate"
"""In place of a data set's name: the mean over the data sets that an encoder has."""

SEED_MEAN = -1
"""In place of a seed: the mean over seeds."""


def degraded_conditions(levels: Mapping[str, Sequence[float]]) -> list[str]:
    """The perturbed conditions, `{kind}-{severity}` with severities from 1 (mild) up."""
    return [
        f"{kind}-{severity}"
        for kind, of_kind in levels.items()
        for severity in range(1, len(of_kind) + 1)
    ]


def nearest(name: str, known: Mapping[str, Any] | Sequence[Any]) -> str:
    by_fold = {str(k).casefold(): str(k) for k in known}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.5)
    return f" (did you mean '{by_fold[close[0]]}'?)" if close else ""


def number(value: float | None) -> str:
    """A statistic with three decimals, or the word for one that has no value."""
    return "undefined" if value is None or math.isnan(value) else f"{value:.3f}"
