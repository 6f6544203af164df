"""What all metrics share: the arrays that they take, and what is refused.

Throughout, ``truth`` is an (n, K) array of 0 and 1 (one-hot for a multi-class task, any pattern for
a multi-label one) and ``probabilities`` the (n, K) array of predictions, where n counts test cases
and K classes or labels. Where a function says so, truth may also be ``UNKNOWN`` (−1): nobody knows
whether the label holds, so the case does not count for it.

Every function gives the same bits whatever the order of the cases: counts are integers, and
floating-point numbers are put in ascending order before they are added up.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Task = Literal["multiclass", "multilabel"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

UNKNOWN = -1
"""The truth of a label of which nobody knows whether it holds."""

ROW_SUM_TOLERANCE = 1e-3
"""How far a multi-class row may be from one: what a float16 round trip can do to it."""


def paired(
    truth: npt.ArrayLike, values: npt.ArrayLike, *, or_unknown: bool = False
) -> tuple[IntArray, FloatArray]:
    """Both as (n, K) C-ordered arrays of int64 and float64."""
    truth = np.asarray(truth)
    values = np.ascontiguousarray(values, dtype=np.float64)
    if truth.ndim != 2 or truth.shape != values.shape:
        raise ValueError(
            f"truth and predictions must both be (n, K), got {truth.shape} and {values.shape}"
        )
    require_binary("truth", np.where(truth == UNKNOWN, 0, truth) if or_unknown else truth)
    return np.ascontiguousarray(truth, dtype=np.int64), values


def require_binary(name: str, values: npt.NDArray[Any]) -> None:
    """Raise ValueError naming the values when one is neither 0 nor 1."""
    if values.dtype != bool and not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must hold only 0 and 1")


def require_unit_interval(values: FloatArray) -> None:
    """Raise ValueError when a probability is not finite or outside [0, 1]."""
    # Written so that NaN fails too.
    if not ((values >= 0.0) & (values <= 1.0)).all():
        if not np.isfinite(values).all():
            raise ValueError("probabilities must be finite, found NaN or infinity")
        raise ValueError(
            f"probabilities must lie in [0, 1], found {values.min():g} to {values.max():g}"
        )
