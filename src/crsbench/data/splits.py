"""Splits by group and nested label subsamples (protocol, section 4, points 1 and 2).

One idea does all of it. Groups are put into strata; within its stratum each group gets a position
in (0, 1): order by a SHA-256 hash, then the mid-point of the group's share of the stratum's images.
Taking the groups below a position f takes about a share f of the images of every stratum, never
splits a group, nests for growing f, and depends on nothing but ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.files import read_table, write_table
from crsbench.core.hashing import sha256_number
from crsbench.core.names import CALIBRATION
from crsbench.data.manifest import Manifest, read_manifest

TEST, TRAIN, DROPPED = "test", "train", "dropped"


@dataclass(frozen=True)
class Split:
    """One seed's division of a data set, rows in the order of its manifest.

    part: (n,) of "train", "calibration", "test" and "dropped" (an image outside the test set that
    the manifest says nothing may be fitted on); percent: (n,) int, for a train image the smallest
    label fraction in percent that holds it, else 0; floors: for each fraction the classes that had
    no member in it and were given one group.
    """

    image_ids: np.ndarray
    part: np.ndarray
    percent: np.ndarray
    floors: Mapping[int, tuple[str, ...]]

    def labelled(self, percent: int) -> np.ndarray:
        """Mask (n,) of the train images within a label fraction."""
        return (self.percent > 0) & (self.percent <= percent)


def choose_test(manifest: Manifest, share: float) -> np.ndarray:
    """Mask (n,) of the test images, about a share of all: one test set for every seed."""
    groups = _Groups.of(manifest, np.ones(len(manifest.groups), dtype=bool))
    is_test = groups.positions("test", np.ones(len(groups.names), dtype=bool)) < share
    groups.require(TEST, is_test)
    return is_test[groups.of_image]


def make_split(
    manifest: Manifest,
    is_test: np.ndarray,
    seed: int,
    fractions: Sequence[int],
    calibration_share: float,
) -> Split:
    """Divide what the test set (mask (n,), whole groups) leaves for one seed.

    calibration_share: the share of the rest that only recalibration may see; fractions: label
    fractions in percent. Raises UserError when a part would stay empty.
    """
    used = is_test | (True if manifest.dropped is None else ~manifest.dropped)
    groups = _Groups.of(manifest, used)
    tested = np.zeros(len(groups.names), dtype=bool)
    tested[groups.of_image[is_test]] = True
    fitted = ~tested & (groups.sizes > 0)
    is_calibration = groups.positions(f"calibration {seed}", fitted) < calibration_share
    is_train = fitted & ~is_calibration
    groups.require(CALIBRATION, is_calibration)
    groups.require(TRAIN, is_train)
    order = groups.positions(f"labels {seed}", is_train)
    percent, floors = _nested_percent(order, groups.labels, sorted(fractions))
    part = np.where(tested, TEST, np.where(is_calibration, CALIBRATION, TRAIN))
    part_of_image = np.where(used, part[groups.of_image], DROPPED)
    percent_of_image = np.where(used, percent[groups.of_image], 0)
    named = {f: tuple(manifest.classes[k] for k in found) for f, found in floors.items()}
    return Split(manifest.image_ids, part_of_image, percent_of_image, named)


def hold_out(manifest: Manifest, among: np.ndarray, share: float, purpose: str) -> np.ndarray:
    """Mask (n,) of about a share of the images of `among` (mask (n,)), by groups and strata.

    A stratum of few groups gives none, so the mask may be empty.
    """
    groups = _Groups.of(manifest, among)
    chosen = groups.positions(purpose, groups.sizes > 0) < share
    return among & chosen[groups.of_image]


@dataclass(frozen=True)
class _Groups:
    """The groups of a manifest, described by its images in use.

    of_image: (n,) index of each image's group; sizes: (G,) images in use; strata: (G,); labels:
    (G, K) bool, whether a group has a member of the class.
    """

    dataset: str
    names: np.ndarray
    of_image: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    strata: np.ndarray

    @classmethod
    def of(cls, manifest: Manifest, used: np.ndarray) -> _Groups:
        """used: mask (n,) of the images that count."""
        names, of_image = np.unique(manifest.groups, return_inverse=True)
        labels = np.zeros((len(names), len(manifest.classes)), dtype=bool)
        members = manifest.truth[used] == 1  # an unknown label is none
        np.logical_or.at(labels, of_image[used], members)
        strata = _rarest_label(labels, members.sum(axis=0))
        sizes = np.bincount(of_image[used], minlength=len(names))
        return cls(manifest.dataset, names, of_image, sizes, labels, strata)

    def positions(self, purpose: str, among: np.ndarray) -> np.ndarray:
        """(G,): the position in its stratum of each group of the mask `among`, else infinity."""
        keys = [sha256_number(self.dataset, purpose, name) for name in self.names[among]]
        result = np.full(len(self.names), np.inf)
        result[among] = _positions(
            np.array(keys, dtype=np.uint64), self.strata[among], self.sizes[among]
        )
        return result

    def require(self, part: str, mask: np.ndarray) -> None:
        if not mask.any():
            raise UserError(
                f"Data set '{self.dataset}' has {len(self.names)} groups, too few for a {part} "
                "part."
            )


def _rarest_label(labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Each group's stratum: its label with the fewest images, K for a group without labels."""
    rarity = np.where(labels, counts, np.iinfo(np.int64).max)
    return np.where(labels.any(axis=1), rarity.argmin(axis=1), labels.shape[1])


def _positions(keys: np.ndarray, strata: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    order = np.lexsort((keys, strata))
    ordered_sizes, ordered_strata = sizes[order].astype(float), strata[order]
    starts = np.cumsum(ordered_sizes) - ordered_sizes
    starts -= starts[np.searchsorted(ordered_strata, ordered_strata)]
    totals = np.bincount(ordered_strata, weights=ordered_sizes)[ordered_strata]
    positions = np.empty(len(keys))
    positions[order] = (starts + ordered_sizes / 2) / totals
    return positions


def _nested_percent(
    order: np.ndarray, labels: np.ndarray, fractions: Sequence[int]
) -> tuple[np.ndarray, dict[int, list[int]]]:
    """The smallest fraction that holds each train group (0 for others), and the floors."""
    train = np.isfinite(order)
    enters = np.searchsorted(np.array(fractions) / 100, order, side="left")
    percent = np.where(train, np.append(fractions, 0)[enters], 0)
    floors: dict[int, list[int]] = {fraction: [] for fraction in fractions}
    members = labels & train[:, None]
    for label in np.argsort(members.sum(axis=0), kind="stable"):
        candidates = np.flatnonzero(members[:, label])
        if len(candidates):
            smallest = percent[candidates].min()
            for fraction in fractions:
                if fraction < smallest:
                    floors[fraction].append(int(label))
            if smallest > fractions[0]:
                percent[candidates[np.argmin(order[candidates])]] = fractions[0]
    return percent, {fraction: sorted(found) for fraction, found in floors.items()}


def write_test(path: Path | str, manifest_file: Path | str, share: float) -> None:
    """Choose a data set's test images and write them down."""
    manifest = read_manifest(manifest_file)
    frame = pd.DataFrame({"image_id": manifest.image_ids, "is_test": choose_test(manifest, share)})
    write_table(path, frame)


def read_test(path: Path | str, manifest: Manifest) -> np.ndarray:
    """Mask (n,) of the test images."""
    frame, _ = read_table(path)
    _require_same_images(path, frame, manifest)
    return frame["is_test"].to_numpy()


def write_split(
    path: Path | str,
    manifest_file: Path | str,
    test_file: Path | str,
    seed: int,
    fractions: Sequence[int],
    calibration_share: float,
) -> None:
    """Divide a data set for one seed and write the split down."""
    manifest = read_manifest(manifest_file)
    is_test = read_test(test_file, manifest)
    split = make_split(manifest, is_test, seed, fractions, calibration_share)
    frame = pd.DataFrame(
        {
            "image_id": split.image_ids,
            "part": split.part,
            "percent": split.percent.astype(np.int16),
        }
    )
    write_table(path, frame, {"floors": {str(f): list(names) for f, names in split.floors.items()}})


def read_split(path: Path | str, manifest: Manifest) -> Split:
    """Read a split and check that it is the manifest's."""
    frame, metadata = read_table(path)
    _require_same_images(path, frame, manifest)
    floors = {int(f): tuple(names) for f, names in metadata["floors"].items()}
    part, percent = frame["part"].to_numpy(dtype=str), frame["percent"].to_numpy(dtype=np.int64)
    return Split(manifest.image_ids, part, percent, floors)


def _require_same_images(path: Path | str, frame: pd.DataFrame, manifest: Manifest) -> None:
    if not np.array_equal(frame["image_id"].to_numpy(dtype=str), manifest.image_ids):
        raise UserError(
            f"{path} holds other images than the manifest of '{manifest.dataset}'; delete it and "
            "rerun."
        )
