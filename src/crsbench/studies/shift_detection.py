"""Shift detection: do an encoder's own features show that an image is unlike training?

Two scores that need no label: Mahalanobis's distance to the training features (Lee et al., NeurIPS
2018, with one Gaussian for all classes), and the distance to the k-th nearest of them on the unit
sphere (Sun et al., ICML 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crsbench.core.hashing import sha256_number
from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.statistics import draw_groups, with_intervals

FloatArray = npt.NDArray[np.float64]

SHIFT_DETECTION_COLUMNS = [
    *("encoder", "dataset", "condition", "score", "n_images", "auroc", "auroc_low", "auroc_high"),
    *("flagged", "flagged_low", "flagged_high", "flagged_clean", "distance_ratio"),
]
SCORES = ("mahalanobis", "knn")


@dataclass(frozen=True)
class ShiftDetectionSettings:
    """images: most training images that the scores refer to, chosen by SHA-256; neighbours: k;
    false_alarms: the share of calibration images that the alarm goes off for."""

    images: int
    neighbours: int
    false_alarms: float


@dataclass(frozen=True, eq=False)
class SeenImages:
    """Features (n, d) of some images, their ids and groups (n,), distinct groups by set."""

    image_ids: np.ndarray
    groups: np.ndarray
    features: np.ndarray


class Mahalanobis:
    """Squared distance to a Gaussian with a shrunken covariance, for any width and count.

    The covariance S of n rows is shrunken to (1 − ρ) S + ρ (tr S / d) I with the ρ of oracle
    approximating shrinkage (Chen et al., IEEE Trans Signal Process 58:5016, 2010), without its
    terms 2 / d, as in scikit-learn. It is applied through the principal axes, so that a width
    beyond the count costs no more.
    """

    def __init__(self, train: np.ndarray) -> None:
        train = np.asarray(train, dtype=np.float64)
        n, d = train.shape
        self.mean_ = train.mean(axis=0)
        variances, self.axes_ = _principal(train - self.mean_)
        trace, squared = variances.sum(), np.square(variances).sum()
        above, below = squared + trace**2, (n + 1) * (squared - trace**2 / d)
        self.shrinkage_ = 1.0 if below <= 0 else min(1.0, above / below)
        floor = self.shrinkage_ * trace / d
        self.inverse_ = 1 / ((1 - self.shrinkage_) * variances + floor) if floor > 0 else variances
        self.rest_ = 1 / floor if floor > 0 else 0.0

    def __call__(self, features: np.ndarray) -> FloatArray:
        """(m,) squared distances of (m, d)."""
        centred = features - self.mean_
        along = centred @ self.axes_
        outside = np.square(centred).sum(axis=1) - np.square(along).sum(axis=1)
        return np.square(along) @ self.inverse_ + np.maximum(outside, 0.0) * self.rest_


def _principal(centred: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variances (r,), ascending, and axes (d, r) of (n, d) centred rows; r ≤ min(n, d)."""
    n, d = centred.shape
    if n > d:
        values, axes = np.linalg.eigh(centred.T @ centred / n)
    else:
        values, left = np.linalg.eigh(centred @ centred.T / n)
    used = values > values[-1] * 1e-10
    values = values[used]
    axes = axes[:, used] if n > d else centred.T @ left[:, used] / np.sqrt(n * values)
    return values, np.ascontiguousarray(axes)


class NearestNeighbours:
    """Distance to the k-th nearest training image, all features scaled to length one."""

    def __init__(self, train: np.ndarray, neighbours: int) -> None:
        self.train_ = _unit(train)
        self.k_ = min(neighbours, len(train))

    def __call__(self, features: np.ndarray) -> FloatArray:
        """(m,) distances of (m, d)."""
        similarity = np.partition(_unit(features) @ self.train_.T, -self.k_, axis=1)[:, -self.k_]
        return np.sqrt(np.maximum(2 - 2 * similarity.astype(np.float64), 0.0))


def _unit(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def chosen_images(image_ids: Sequence[str], most: int) -> np.ndarray:
    """Places of at most `most` of the images, by the SHA-256 of their ids, ascending."""
    if len(image_ids) <= most:
        return np.arange(len(image_ids))
    numbers = np.array(
        [sha256_number("shift_detection", name) for name in image_ids], dtype=np.uint64
    )
    return np.sort(np.argsort(numbers, kind="stable")[:most])


def shift_detection(
    train: SeenImages,
    calibration: SeenImages,
    clean: SeenImages,
    others: Mapping[str, SeenImages],
    settings: ShiftDetectionSettings,
    replicates: int,
    name: str,
) -> list[dict[str, Any]]:
    """How well the scores distinguish the images of each condition from the clean test images.

    clean: the test set; others: the degraded test sets and the external sets by condition. The same
    patients are resampled on both sides. The alarm's limit is the quantile 1 − false_alarms of the
    calibration set.

    Returns rows with condition, score, auroc with its interval, `flagged`: share of the images that
    set the alarm off, `flagged_clean`: the same of clean test images, `distance_ratio`: median
    score over that of clean test images.
    """
    kept = train.features[chosen_images(train.image_ids, settings.images)]
    distances: list[dict[str, FloatArray]] = []
    limits = []
    for score in (Mahalanobis(kept), NearestNeighbours(kept, settings.neighbours)):
        limits.append(_limit(score(calibration.features), settings.false_alarms))
        parts = {"": clean, **others}
        distances.append({key: score(seen.features) for key, seen in parts.items()})
    records = []
    for condition, seen in others.items():
        groups = np.concatenate([clean.groups, seen.groups])
        weights = draw_groups(groups, f"sentinel of {name} under {condition}", replicates)
        other = np.arange(len(groups)) >= len(clean.groups)
        both = np.stack([np.concatenate([d[""], d[condition]]) for d in distances], axis=1)
        auroc = resampled_auroc(np.stack([other, other], axis=1), both, weights)
        here = weights[:, other]
        with np.errstate(invalid="ignore"):  # a resample without an external image has no value
            flagged = here @ (both[other] > limits) / here.sum(axis=1, keepdims=True)
        for k, score_name in enumerate(SCORES):
            row = {"condition": condition, "score": score_name, "n_images": len(seen.groups)}
            row |= with_intervals({"auroc": auroc[:, k], "flagged": flagged[:, k]})
            row["flagged_clean"] = float((both[~other, k] > limits[k]).mean())
            row["distance_ratio"] = _ratio(np.median(both[other, k]), np.median(both[~other, k]))
            records.append(row)
    return records


def _ratio(a: float, b: float) -> float:
    return float(a / b) if b > 0 else float("nan")


def _limit(distances: FloatArray, false_alarms: float) -> float:
    """The least limit that at most a share of the distances exceeds."""
    return float(np.quantile(distances, 1 - false_alarms, method="higher"))
