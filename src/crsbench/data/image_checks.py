"""Readable but ruined pixels: what a scan measures of each image, and what an audit says of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from crsbench.core.errors import UserError
from crsbench.data.near_duplicates import SIDE, cropped_hashes, hash_bits, hash_of, thumbnail
from crsbench.images.scaling import DEEP_BITS, Scaling

TAIL = 0.005
"""The share of pixels at either end that counts neither as an image's darkest nor brightest."""

BLACK, WHITE = 5, 250
"""Up to which grey value a pixel is black, and from which it is white."""

DARK, BRIGHT, NARROW = 64, 192, 32
"""An image is dark with no value from DARK on, bright with none below BRIGHT, and narrow with fewer
than NARROW values from its darkest to its brightest."""

SATURATED, ALL_BLACK = 0.5, 0.9
"""The share of white pixels, and of black ones, from which an image is saturated."""

MISSING = 128
"""What a JPEG decoder leaves where data are missing: coefficients of 0."""

REGION = SIDE // 4
"""From how many 64ths of the height or width a border of one value is a finding."""

USUAL = 0.05
"""From which share of a set's images on what they have in common is no finding."""

OUTLIER, LEAST_SPREAD = 6.0, 4.0
"""How many standard deviations (1.4826 · median absolute deviation, but at least LEAST_SPREAD grey
levels) an outlier is from the set's median."""

UNLIKE = 0.2
"""What the similarity to the set is on average at least, and of an unlike image at most minus."""

CLEARLY_FEWER = 12
"""A 16-bit image whose values need so many bits or fewer is black if it is read as 16 bits."""

Json = dict[str, Any]


# --- one image ------------------------------------------------------------------------------------


def measure(image: Image.Image, content: bytes) -> Json:
    """Of an upright 8-bit image and its file: hashes, grey values, borders of one value, lost data.

    low, high: grey values with 0.5 % of the pixels below and above; mean; black, white: shares of
    pixels; blank: the widest border of one value, in 64ths of the image, and blank_value;
    missing_data: whether a corner is what a decoder makes of no data, or scans are lacking.
    """
    grey = image.convert("L")
    small = thumbnail(grey)
    counts = np.array(grey.histogram(), dtype=np.int64)
    cumulated = counts.cumsum()
    low, high = np.searchsorted(cumulated, cumulated[-1] * np.array([TAIL, 1 - TAIL]))
    blank, blank_value = _border(small)
    return {
        "constant": bool(counts.max() == cumulated[-1])
        and all(first == last for first, last in _extrema(image)),
        "perceptual_hash": hash_of(small),
        "cropped_hashes": cropped_hashes(grey, small),
        "low": int(low),
        "high": int(high),
        "mean": round(float(counts @ np.arange(256) / cumulated[-1]), 2),
        "black": round(float(cumulated[BLACK] / cumulated[-1]), 4),
        "white": round(float(1 - cumulated[WHITE - 1] / cumulated[-1]), 4),
        "blank": blank,
        "blank_value": blank_value,
        "missing_data": _corner_is_missing(image) or lacks_scans(content),
    }


def _border(small: np.ndarray) -> tuple[int, int]:
    """How many of the rows or columns from one side on have one value, and which."""
    widest = 0, 0
    for side in (small, small[::-1], small.T, small.T[::-1]):
        value = side[0, 0]
        if (side[0] == value).all():
            other = (side != value).any(axis=1)
            widest = max(widest, (int(other.argmax()) if other.any() else SIDE, int(value)))
    return widest


def _corner_is_missing(image: Image.Image) -> bool:
    """Whether the 8 × 8 pixels of a corner are the grey of missing data; in which, EXIF says."""
    width, height = image.size
    for x, y in ((0, 0), (width - 8, 0), (0, height - 8), (width - 8, height - 8)):
        alike = min(x, y) >= 0 and image.getpixel((x, y)) in (MISSING, (MISSING,) * 3)
        if alike and _extrema(image.crop((x, y, x + 8, y + 8))) == {(MISSING, MISSING)}:
            return True
    return False


def _extrema(image: Image.Image) -> set[tuple[int, int]]:
    """The smallest and the largest value of each channel."""
    found = image.getextrema()
    return {found} if image.mode == "L" else {*found}


def lacks_scans(content: bytes) -> bool:
    """Whether a JPEG file's scans leave a coefficient of a component without its last bit.

    A progressive file sends coefficients Ss to Se of some components in a scan, all but their
    lowest Al bits (ITU-T T.81, B.2.3 and G.1.1.1); cut short and closed, it still decodes.
    """
    lacking: dict[int, np.ndarray] = {}  # by component, the bits that each coefficient lacks
    place = 2 if content[:2] == b"\xff\xd8" else -1
    while 0 <= place <= len(content) - 4:
        kind, body = content[place + 1], place + 4
        length = int.from_bytes(content[place + 2 : body])
        if kind in (0xC0, 0xC1, 0xC2):  # start of a frame: precision, height, width, components
            parts = content[body + 6 : body + 6 + 3 * content[body + 5]]
            lacking = {component: np.full(64, 255) for component in parts[::3]}
        elif kind == 0xDA:
            count = content[body]
            first, last, bits = content[body + 1 + 2 * count : body + 4 + 2 * count]
            for component in content[body + 1 : body + 1 + 2 * count : 2]:
                if component in lacking:
                    lacking[component][first : last + 1] = bits & 15
        found = _MARKER.search(content, place + 2 + length)
        place = found.start() if found and found[0] != b"\xff\xd9" else -1
    return any(bits.any() for bits in lacking.values())


_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]", re.DOTALL)
"""What ends a scan's data: no stuffed byte, no restart, no filling."""


# --- a set ----------------------------------------------------------------------------------------


def check_depth(dataset: str, scan: pd.DataFrame, scaling: Scaling) -> None:
    """Refuse 16-bit grey images whose values use fewer bits where the data set declares none.

    Scaled over 16 bits they would be black; scaled each by its own values they would not be
    comparable. Raises UserError naming the first image, and the key.
    """
    deep = scan[scan["largest"] > 0]
    if scaling.bits is not None or deep.empty:
        return
    needed = int(deep["largest"].max()).bit_length()
    dark = deep if needed < DEEP_BITS else deep[deep["largest"] < 2**CLEARLY_FEWER]
    if dark.empty:
        return
    needed = max(8, int(dark["largest"].max()).bit_length())
    first = dark.iloc[0]
    raise UserError(
        f"Data set '{dataset}': {len(dark)} of its {len(deep)} 16-bit grey images have no value "
        f"above {dark['largest'].max()}, the first is '{first['path']}' with at most "
        f"{first['largest']}; declare the depth of the data set's values, bits: {needed}, or bits: "
        f"{DEEP_BITS} if they are as dark as that."
    )


def file_findings(scan: pd.DataFrame) -> Json:
    """What an audit says of a set's files: counts, and every image that a finding is about."""
    whole = scan[scan["error"] == ""]
    modes = whole["mode"].value_counts()
    usual = min(modes.index[modes == modes.max()])
    errors = scan[scan["error"] != ""]
    short_side = whole[["width", "height"]].min(axis=1)
    return {
        "read": len(whole),
        "damaged": {
            "count": len(errors),
            "listed": errors[["image_id", "error"]].to_dict("records"),
        },
        "constant_colour": _named(whole, whole["constant"]),
        **{name: _named(whole, mask) for name, mask in _content_findings(whole).items()},
        "modes": {mode: int(modes[mode]) for mode in sorted(modes.index)},
        "odd_mode": _named(whole, whole["mode"] != usual),
        "short_side": {"smallest": int(short_side.min()), "largest": int(short_side.max())},
        "distinct_sizes": len(whole[["width", "height"]].drop_duplicates()),
    }


def _content_findings(whole: pd.DataFrame) -> dict[str, pd.Series]:
    """By name of the finding a mask (n,) of the images."""
    black_or_white = (whole["blank_value"] <= BLACK) | (whole["blank_value"] >= WHITE)
    bordered = black_or_white & (whole["blank"] >= REGION)
    return {
        "dark": whole["high"] < DARK,
        "bright": whole["low"] >= BRIGHT,
        "narrow_range": whole["high"] - whole["low"] < NARROW,
        "saturated": (whole["white"] >= SATURATED) | (whole["black"] >= ALL_BLACK),
        "missing_data": whole["missing_data"] | (~black_or_white & (whole["blank"] >= 2)),
        "constant_region": bordered & (bordered.sum() <= max(1, USUAL * len(whole))),
        "outliers": _outliers(whole["mean"]) | _outliers(whole["high"] - whole["low"]),
        "unlike_the_set": _unlike(whole["perceptual_hash"]),
    }


def _outliers(values: pd.Series) -> pd.Series:
    """Far from the set's median, by the median absolute deviation (1.4826 of it is a σ)."""
    distance = (values - values.median()).abs()
    return distance > OUTLIER * max(LEAST_SPREAD, 1.4826 * distance.median())


def _unlike(hashes: pd.Series) -> np.ndarray:
    """Against the set's common picture, as an inverted or turned image among others is.

    With an image's hash as b of ±1 and m the set's mean of it, the similarity is b·m / Σ|m|, from
    −1 to 1. Sets without a common picture have none that is unlike it. The mean grey value has no
    part in it.
    """
    signs = 2.0 * hash_bits(hashes.to_numpy())[:, 1:] - 1
    common = signs.mean(axis=0)
    similarity = signs @ common / max(float(np.abs(common).sum()), 1e-9)
    return (similarity < -UNLIKE) & (np.median(similarity) > UNLIKE)


def _named(whole: pd.DataFrame, mask: pd.Series | np.ndarray) -> Json:
    return {"count": int(mask.sum()), "listed": whole.loc[mask, "image_id"].to_list()}
