"""The audit of a data set: what must be known of it before a number is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.files import read_table, write_json
from crsbench.data.image_checks import file_findings
from crsbench.data.manifest import Manifest, conflicting, read_manifest
from crsbench.data.near_duplicates import cropped_pairs, near_pairs, turned_pairs
from crsbench.data.readers import UNKNOWN_GROUP
from crsbench.data.readers.identities import (
    HOW,
    LARGEST_GROUP,
    giant_groups,
    placeholders,
    quoted,
    spelled_alike,
)
from crsbench.data.splits import CALIBRATION, TEST, TRAIN, Split, read_split
from crsbench.metrics.arrays import UNKNOWN

NEAR_BITS = 10
"""Images are near duplicates when at most this many of their hashes' 256 bits differ."""

MISSED_SHARE = 0.25
"""The test set's share is missed when it is off by more than this part of itself."""

Json = dict[str, Any]


def write_audit(
    output: Path | str,
    entry: DatasetEntry,
    manifest_file: Path | str,
    images_file: Path | str,
    split_files: Mapping[int, Path | str],
    target_files: Mapping[str, Path | str],
    test_share: float | None = None,
) -> None:
    """Audit a data set from its manifest, its image table and its splits (seed: file).

    target_files: the manifests of its shift targets, whose images are sought among its own;
    test_share: the share of the images that the test set should have. What only the images could
    say is null for a data set, or a target, without images.
    """
    manifest = read_manifest(manifest_file)
    frame, metadata = read_table(manifest_file)
    scan, _ = read_table(images_file)
    splits = {seed: read_split(file, manifest) for seed, file in sorted(split_files.items())}
    write_json(
        output,
        {
            "dataset": entry.name,
            "title": entry.title,
            "images": len(frame),
            "rows": _rows(entry, frame, scan, metadata["left_out"]),
            "files": None if entry.without_images else file_findings(scan),
            "notices": _notices(manifest, splits, test_share),
            "labels": _labels(manifest),
            "groups": _groups(manifest, splits),
            "spelled_alike": _spelled_alike(manifest),
            "duplicates": (
                None if entry.without_images else _duplicates(entry, frame, scan, splits)
            ),
            **({"demographics": metadata["demographics"]} if "demographics" in metadata else {}),
            "missing_metadata": _missing_metadata(manifest.subgroups),
            "splits": {str(seed): _split(manifest, split) for seed, split in splits.items()},
            "shift_targets": {
                name: _target(frame, file, splits) for name, file in sorted(target_files.items())
            },
        },
    )


def _rows(
    entry: DatasetEntry, frame: pd.DataFrame, scan: pd.DataFrame, left_out: Mapping[str, int]
) -> Json:
    """The images found against the publisher's expected count, quarantined ones included."""
    expected = entry.spec.get("expected_images")
    found: int | dict[str, int] = len(scan)
    if isinstance(expected, dict):
        counts = frame["publisher_split"].value_counts()
        found = {name: int(counts.get(name, 0)) for name in sorted({*expected, *counts.index})}
    return {
        "expected": expected,
        "found": found,
        "as_expected": None if expected is None else found == expected,
        "left_out": dict(left_out),
    }


def _labels(manifest: Manifest) -> Json:
    return {
        "classes": _per_class(manifest, np.ones(len(manifest.truth), dtype=bool)),
        "unknown": _counts(manifest, manifest.truth == UNKNOWN),
        "without_any": int((manifest.truth != 1).all(axis=1).sum()),
    }


def _notices(
    manifest: Manifest, splits: Mapping[int, Split], test_share: float | None
) -> list[str]:
    """What a reader of any number of this data set must know first, a sentence each."""
    return [
        *_notices_of_groups(manifest),
        *_notices_of_spelling(manifest),
        *_notices_of_classes(manifest, splits),
        *_notices_of_share(splits, test_share),
    ]


def _notices_of_groups(manifest: Manifest) -> list[str]:
    unknown, images = int(_is_unknown(manifest).sum()), len(manifest.groups)
    named = _group_names(manifest)
    found = []
    if unknown:
        whose = "No image has" if unknown == images else f"{unknown} of {images} images have no"
        whose += " a stated" if unknown == images else ""
        found.append(
            f"{whose} patient or lesion: each is a group of its own, and images of one patient may "
            "lie in train and test."
        )
    found += [
        f"The group {quoted(name)} of {count} images may stand for patients that are not known."
        for name, count in placeholders(named).items()
    ]
    found += [
        f"The group {quoted(name.partition(':')[2])} has {count} of {images} images."
        for name, count in giant_groups(pd.Series(manifest.groups), LARGEST_GROUP).items()
    ]
    return found


def _notices_of_spelling(manifest: Manifest) -> list[str]:
    return [
        f"{column} has {len(sets)} names that differ only in {HOW}, "
        f"such as {' and '.join(map(quoted, sets[0]))}."
        for column, sets in _spelled_alike(manifest).items()
        if sets
    ]


def _notices_of_classes(manifest: Manifest, splits: Mapping[int, Split]) -> list[str]:
    found = []
    counts = _per_class(manifest, np.ones(len(manifest.truth), dtype=bool))
    for name, count in counts.items():
        if not count:
            found.append(f"The class '{name}' has no image.")
            continue
        for part in (TRAIN, TEST):
            seeds = [
                str(seed)
                for seed, split in splits.items()
                if not _per_class(manifest, split.part == part)[name]
            ]
            if seeds:
                where = f"the {part} part of seed {', '.join(seeds)}"
                found.append(f"The class '{name}' ({count} images) has no image in {where}.")
    return found


def _notices_of_share(splits: Mapping[int, Split], wanted: float | None) -> list[str]:
    for split in splits.values():  # one test set for every seed
        share = float((split.part == TEST).mean())
        if wanted is not None and abs(share - wanted) > MISSED_SHARE * wanted:
            return [
                f"The test set has {share:.1%} of the images where splits.test asks for "
                f"{wanted:.1%}: groups are too large to be divided so."
            ]
    return []


def _is_unknown(manifest: Manifest) -> np.ndarray:
    """Mask (n,) of the images whose patient or lesion is not known."""
    return np.char.startswith(manifest.groups, UNKNOWN_GROUP)


def _group_names(manifest: Manifest) -> pd.Series:
    """The names of the known groups, image by image, as the publisher writes them."""
    known = manifest.groups[~_is_unknown(manifest)]
    return pd.Series(known, dtype=str).str.partition(":")[2] if len(known) else pd.Series(dtype=str)


def _spelled_alike(manifest: Manifest) -> dict[str, list[list[str]]]:
    """By column the sets of names that differ in spelling only."""
    return {
        "image_id": spelled_alike(manifest.image_ids),
        "group": spelled_alike(_group_names(manifest)),
        **{name: spelled_alike(values) for name, values in manifest.subgroups.items()},
    }


def _groups(manifest: Manifest, splits: Mapping[int, Split]) -> Json:
    sizes = pd.Series(manifest.groups).value_counts()
    return {
        "count": len(sizes),
        "largest": int(sizes.max()),
        "of_one_image": int((sizes == 1).sum()),
        "images_of_unknown_group": int(_is_unknown(manifest).sum()),
        "crossing_parts": {
            str(seed): _crossing(manifest.groups, split) for seed, split in splits.items()
        },
    }


def _crossing(groups: np.ndarray, split: Split) -> int:
    """How many groups have images in more than one of train, calibration and test."""
    used = np.isin(split.part, [TRAIN, CALIBRATION, TEST])
    parts = pd.DataFrame({"group": groups[used], "part": split.part[used]}).drop_duplicates()
    return int(parts["group"].duplicated().sum())


def _duplicates(
    entry: DatasetEntry, frame: pd.DataFrame, scan: pd.DataFrame, splits: Mapping[int, Split]
) -> Json:
    clashing = conflicting(frame)
    one_each = ~frame["content_sha256"].duplicated()
    hashes = scan.set_index("image_id").loc[frame["image_id"]]
    compared = np.flatnonzero(one_each & ~hashes["constant"].to_numpy())
    known, cropped = (
        hashes[name].to_numpy()[compared] for name in ("perceptual_hash", "cropped_hashes")
    )
    near = _Pairs(frame, compared, near_pairs(known, NEAR_BITS))
    changed = {
        how: _Pairs(frame, compared, pairs)
        for found in (turned_pairs(known, NEAR_BITS), cropped_pairs(known, cropped, NEAR_BITS))
        for how, pairs in found
        if len(pairs)
    }
    return {
        "exact": _exact(frame, np.ones(len(frame), dtype=bool)),
        "conflicting": {
            **_exact(frame, clashing),
            "policy": entry.spec.get("conflicting_duplicates", "drop"),
            "dropped_from_fitting": int(frame["dropped"].sum()),
            "kept_in_test": {
                str(seed): int((clashing & (split.part == TEST)).sum())
                for seed, split in splits.items()
            },
        },
        "near": {"bits": NEAR_BITS, **near.described(splits)},
        "near_when_changed": {how: pairs.described(splits) for how, pairs in changed.items()},
    }


def _exact(frame: pd.DataFrame, among: np.ndarray) -> Json:
    """The sets of two and more images with equal bytes, within a mask (n,)."""
    copies = frame[among & frame["content_sha256"].duplicated(keep=False)]
    sets = sorted(map(sorted, copies.groupby("content_sha256")["image_id"].agg(list)))
    return {
        "sets": len(sets),
        "images": sum(map(len, sets)),
        "pairs": sum(len(members) * (len(members) - 1) // 2 for members in sets),
        "listed": sets,
    }


class _Pairs:
    """Pairs of images: (m, 3) of two places in `rows` of a manifest's frame and differing bits."""

    def __init__(self, frame: pd.DataFrame, rows: np.ndarray, pairs: np.ndarray) -> None:
        self.ids = frame["image_id"].to_numpy(dtype=str)
        self.truth = np.stack(frame["labels"].to_list())
        self.first, self.second, self.bits = *rows[pairs[:, :2]].T, pairs[:, 2]
        groups = frame["group"].to_numpy(dtype=str)
        self.across_groups = groups[self.first] != groups[self.second]

    def with_other_labels(self) -> int:
        return int((self.truth[self.first] != self.truth[self.second]).any(axis=1).sum())

    def crossing(self, split: Split) -> int:
        """How many pairs lie on both sides of the test set."""
        tested = split.part == TEST
        fitted = np.isin(split.part, [TRAIN, CALIBRATION])
        one, other = self.first, self.second
        return int((tested[one] & fitted[other] | fitted[one] & tested[other]).sum())

    def described(self, splits: Mapping[int, Split]) -> Json:
        return {
            "pairs": len(self.bits),
            "across_groups": int(self.across_groups.sum()),
            "with_other_labels": self.with_other_labels(),
            "crossing_parts": {str(seed): self.crossing(split) for seed, split in splits.items()},
            "listed": self.listed(splits),
        }

    def listed(self, splits: Mapping[int, Split]) -> list[Json]:
        """The pairs of different groups, which no grouping knows of, with their parts by seed."""
        return [
            {
                "images": [self.ids[one], self.ids[other]],
                "bits": int(self.bits[pair]),
                "parts": {str(seed): [s.part[one], s.part[other]] for seed, s in splits.items()},
            }
            for pair in np.flatnonzero(self.across_groups)
            for one, other in [(self.first[pair], self.second[pair])]
        ]


def _target(frame: pd.DataFrame, file: Path | str, splits: Mapping[int, Split]) -> Json:
    """The images of a shift target that are, byte by byte, images of the data set too."""
    target, _ = read_table(file)
    if not (target["content_sha256"].all() and frame["content_sha256"].all()):
        return {"images": len(target), "also_in_source": None, "also_fitted_on": None}
    same = target["content_sha256"].isin(frame["content_sha256"])
    return {
        "images": len(target),
        "also_in_source": _named(target.loc[same, "image_id"]),
        "also_fitted_on": {
            str(seed): int(
                target["content_sha256"]
                .isin(frame.loc[np.isin(split.part, [TRAIN, CALIBRATION]), "content_sha256"])
                .sum()
            )
            for seed, split in splits.items()
        },
    }


def _missing_metadata(subgroups: pd.DataFrame) -> Json:
    return {name: int((subgroups[name] == "").sum()) for name in sorted(subgroups.columns)}


def _split(manifest: Manifest, split: Split) -> Json:
    parts = {part: split.part == part for part in sorted(set(split.part))}
    fractions = sorted(split.floors)
    return {
        "parts": {part: _described(manifest, mask) for part, mask in parts.items()},
        "fractions": {
            str(percent): {
                **_described(manifest, split.labelled(percent)),
                "given_one_group": list(split.floors[percent]),
            }
            for percent in fractions
        },
    }


def _described(manifest: Manifest, mask: np.ndarray) -> Json:
    return {
        "images": int(mask.sum()),
        "groups": len(np.unique(manifest.groups[mask])),
        "classes": _per_class(manifest, mask),
    }


def _per_class(manifest: Manifest, mask: np.ndarray) -> dict[str, int]:
    return _counts(manifest, manifest.truth[mask] == 1)


def _counts(manifest: Manifest, marked: np.ndarray) -> dict[str, int]:
    """How many rows of the mask (m, K) are marked, by class."""
    counts = marked.sum(axis=0)
    return {name: int(count) for name, count in zip(manifest.classes, counts, strict=True)}


def _named(ids: Sequence[str] | pd.Series) -> Json:
    return {"count": len(ids), "listed": list(ids)}
