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
from crsbench.core.names import CLEAN, number
from crsbench.data.splits import CALIBRATION, TEST, TRAIN, read_split
from crsbench.evaluation.runs import unseen
from crsbench.features.store import read_features
from crsbench.metrics.discrimination import resampled_auroc
from crsbench.metrics.statistics import draw_groups, with_intervals
from crsbench.studies.figures import Figure, dots
from crsbench.studies.inputs import Inputs
from crsbench.studies.registry import TESTED, Finding, Row, Study, fields, not_run, study

FloatArray = npt.NDArray[np.float64]

SCORES = {
    "mahalanobis": "Mahalanobis's distance",
    "knn": "The distance to the nearest neighbours",
}


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


def shift_detection_of(
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
        weights = draw_groups(groups, f"shift_detection of {name} under {condition}", replicates)
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


# --- the study ------------------------------------------------------------------------------------


def _rows(inputs: Inputs, cell: tuple[str, str]) -> dict[str, list[Row]]:
    """On the split of the first seed: the features are the same for all."""
    encoder, dataset = cell
    settings = inputs.settings["studies"]
    split_file = inputs.split_files[dataset]
    part = read_split(split_file, inputs.manifests[dataset]).part
    train, calibration = (
        _seen(inputs, cell, CLEAN, dataset, part == which) for which in (TRAIN, CALIBRATION)
    )
    tested: dict[str, SeenImages] = {}
    for condition in inputs.conditions[dataset]:
        images, rows = dataset, part == TEST
        if condition in inputs.targets:
            files = inputs.manifest_files[condition], inputs.manifest_files[dataset]
            images, rows = condition, unseen(*files, split_file)
        tested[condition] = _seen(inputs, cell, condition, images, rows)
    clean = tested.pop(CLEAN)
    own = ShiftDetectionSettings(**settings["shift_detection"])
    sets = train, calibration, clean, tested
    found = shift_detection_of(*sets, own, settings["replicates"], dataset)
    return {"rows": [{"encoder": encoder, "dataset": dataset} | row for row in found]}


def _seen(
    inputs: Inputs, cell: tuple[str, str], condition: str, images: str, rows: np.ndarray
) -> SeenImages:
    """A cell's features of some images (a mask) of the set `images` under a condition."""
    manifest = inputs.manifests[images]
    file = inputs.feature_files[(*cell, condition)]
    ids = manifest.image_ids[rows]
    groups = np.char.add(f"{manifest.group_namespace}\x1f", manifest.groups[rows])
    features = read_features(file, inputs.features_made_by(cell[0], condition))
    return SeenImages(ids, groups, features.rows(ids, file))


@study(
    title="Can a shift be noticed from the features alone?",
    theme="elsewhere",
    needs=("features",),
    columns=TESTED
    | fields("string", "score")
    | fields("Int64", "n_images")
    | fields(float, "auroc auroc_low auroc_high flagged flagged_low flagged_high flagged_clean")
    | fields(float, "distance_ratio"),
    limit=(
        "A shift that the features show need not cost anything, and one that costs need not show."
    ),
    wanted=lambda settings: bool(settings["studies"].get("shift_detection")),
)
def shift_detection(inputs: Inputs) -> Study:
    """How well each score distinguishes degraded and external images from clean ones."""
    table = shift_detection.table(inputs.of_all(_rows, inputs.cells)["rows"])
    shown = inputs.without_floors(table)
    if shown.empty:
        return not_run("there is no degraded or external condition")
    sentences = []
    findings: dict[str, Finding] = {}
    for score, rows in shown.groupby("score", sort=False):
        means = rows.groupby("condition")["auroc"].mean()
        findings |= {f"{score}.{condition}.auroc": float(v) for condition, v in means.items()}
        unseen = means[means < 0.6]
        sentences.append(
            f"{SCORES[score]} finds {means.idxmax()} best (AUROC {number(means.max())}) and "
            f"{means.idxmin()} least ({number(means.min())}); {len(unseen)} of {len(means)} "
            "conditions stay below 0.6."
        )
    alarms = shown["flagged_clean"].mean()
    sentences.append(f"On clean test images the alarms go off for {alarms:.1%}.")

    def draw(figure: Figure) -> None:
        best = shown[shown["score"] == "mahalanobis"]
        dots(figure, inputs, best, "condition", "auroc", "AUROC of detection", line=0.5)

    return Study(table, " ".join(sentences), findings, draw)
