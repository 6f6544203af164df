"""Near duplicates: images whose perceptual hashes are almost equal, turned and cropped ones too.

The hash is the DCT hash: the picture in grey at 64 × 64, its two-dimensional discrete cosine
transform, one bit for each of the 16 × 16 lowest frequencies: whether the coefficient is positive
(pHash's idea, with 256 bits in place of 64, since radiographs and fundus photographs of one kind
are too much alike for 64; and with 0 in place of the median, so that the hash of a mirrored or
inverted picture follows from that of the picture).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image

SIDE, FREQUENCIES = 64, 16
BITS = FREQUENCIES * FREQUENCIES

AT_ONCE = 4_000_000
"""How many pairs are compared at once, which bounds the memory."""

CENTRES = (0.95, 0.9, 0.875, 0.8)
"""The shares of either side that copies are cropped to: round ones, and 224 of 256 pixels."""

BORDER = [0] * 17 + [255] * 239
"""A dark border has grey values up to 16: JPEG's noise beside black."""

ORIENTATIONS = {
    "": (False, False, False),
    "mirrored": (False, True, False),
    "upside down": (False, False, True),
    "turned by 180°": (False, True, True),
    "turned by 90°, mirrored": (True, False, False),
    "turned by 90°": (True, True, False),
    "turned by 270°": (True, False, True),
    "turned by 270°, mirrored": (True, True, True),
}
"""By name whether rows and columns are swapped, then left and right, then top and bottom."""


def thumbnail(grey: Image.Image) -> np.ndarray:
    """(64, 64) uint8: the means of a grey image's parts."""
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX))


def perceptual_hash(image: Image.Image) -> str:
    """The 256-bit DCT hash of an RGB or grey image, as 64 hexadecimal digits."""
    return hash_of(thumbnail(image.convert("L")))


def _cosines(kept: float) -> np.ndarray:
    """(16, 64): the DCT-II of the middle of 64 values, a share `kept` of them.

    Row u is cos(π u (x + 1/2 − r) / (64 − 2 r)) behind a rim of r values, weighted by the part of
    value x that is kept.
    """
    rim = SIDE * (1 - kept) / 2
    x, u = np.arange(SIDE), np.arange(FREQUENCIES)[:, None]
    weights = np.clip(np.minimum(x + 1, SIDE - rim) - np.maximum(x, rim), 0, 1)
    return weights * np.cos(np.pi * u * (x + 0.5 - rim) / (SIDE - 2 * rim))


WHOLE = _cosines(1)[None]
MIDDLES = np.stack([_cosines(kept) for kept in CENTRES])


def hash_of(small: np.ndarray, cosines: np.ndarray = WHOLE) -> str:
    """The hashes of a (64, 64) thumbnail, one for each of (k, 16, 64) transforms."""
    low = cosines @ small.astype(np.float64) @ cosines.swapaxes(1, 2)
    return np.packbits(low.ravel() > 1e-3).tobytes().hex()  # what is 0 but for rounding is not


def cropped_hashes(grey: Image.Image, small: np.ndarray) -> str:
    """Of a grey image and its thumbnail: the hashes without a dark border, and of each centre."""
    box = grey.point(BORDER).getbbox() or (0, 0, *grey.size)
    inside = small if box == (0, 0, *grey.size) else thumbnail(grey.crop(box))
    return hash_of(inside) + hash_of(small, MIDDLES)


def hash_bits(hashes: np.ndarray) -> np.ndarray:
    """(n, 256) uint8, 0 or 1, of (n,) hashes, or of texts of several hashes, one after another."""
    packed = np.frombuffer(bytes.fromhex("".join(hashes)), dtype=np.uint8)
    return np.unpackbits(packed).reshape(-1, BITS)


def near_pairs(hashes: np.ndarray, most: int) -> np.ndarray:
    """(m, 3) of i, j, distance: the pairs i < j of (n,) hashes that differ in `most` bits or fewer.

    Exact: cut into most + 1 bands, two such hashes agree in at least one band whole, so only hashes
    that share a band are compared. Raises ValueError for fewer than 3 bits.
    """
    bits = hash_bits(hashes)
    return _near(bits, bits, most)


def turned_pairs(hashes: np.ndarray, most: int) -> Iterator[tuple[str, np.ndarray]]:
    """As `near_pairs`, where j is turned, mirrored or inverted: how, and its pairs (m, 3)."""
    bits = hash_bits(hashes)
    for inverted in (False, True):
        for name, orientation in ORIENTATIONS.items():
            how = ", ".join(filter(None, [name, "inverted" if inverted else ""]))
            if how:
                yield how, _near(bits, turned_bits(bits, *orientation, inverted=inverted), most)


def cropped_pairs(
    hashes: np.ndarray, cropped: np.ndarray, most: int
) -> Iterator[tuple[str, np.ndarray]]:
    """As `near_pairs`, where one is cropped, of (n,) hashes and `cropped_hashes`: how, and (m, 3).

    Pairs that are near as they are have no part in it.
    """
    whole = hash_bits(hashes)
    borderless, *centres = hash_bits(cropped).reshape(-1, 1 + len(CENTRES), BITS).swapaxes(0, 1)
    cropped_to = {"without a border": [(borderless, borderless)]}
    cropped_to["cropped to the centre"] = [
        pair for centre in centres for pair in ((whole, centre), (centre, whole))
    ]
    for how, compared in cropped_to.items():
        pairs = np.concatenate([_near(one, other, most) for one, other in compared])
        pairs = pairs[(whole[pairs[:, 0]] != whole[pairs[:, 1]]).sum(axis=1) > most]
        pairs = pairs[np.argsort(pairs[:, 2], kind="stable")]  # of several crops the closest
        yield how, pairs[np.unique(pairs[:, :2], axis=0, return_index=True)[1]]


def turned_bits(
    bits: np.ndarray, swapped: bool, mirrored: bool, upside_down: bool, *, inverted: bool
) -> np.ndarray:
    """The hashes (n, 256) of the same pictures turned.

    Coefficient (u, v) belongs to cos(π u (2y + 1) / 2N) cos(π v (2x + 1) / 2N): swapping rows and
    columns swaps u and v, mirroring x → N − 1 − x multiplies by (−1)^v, upside down by (−1)^u, and
    255 − values by −1, but for the mean (0, 0), which stays positive.
    """
    squares = bits.reshape(-1, FREQUENCIES, FREQUENCIES)
    squares = (squares.transpose(0, 2, 1) if swapped else squares).copy()
    squares[:, :, 1::2] ^= mirrored
    squares[:, 1::2, :] ^= upside_down
    mean = squares[:, 0, 0].copy()
    squares ^= inverted
    squares[:, 0, 0] = mean
    return squares.reshape(-1, BITS)


def _near(one: np.ndarray, other: np.ndarray, most: int) -> np.ndarray:
    """(m, 3) of i < j and the distance, at most `most`, of one[i] to other[j], each (n, 256)."""
    if most < 3:
        raise ValueError(f"most is {most}; a band of more than 64 bits does not fit a number.")
    words, others = (np.packbits(bits, axis=1).view(np.uint64) for bits in (one, other))
    found = [np.empty((0, 3), dtype=np.int64)]
    for band in np.array_split(np.arange(BITS), most + 1):
        for first, second in _sharing(_as_number(one[:, band]), _as_number(other[:, band])):
            distance = np.bitwise_count(words[first] ^ others[second]).sum(axis=1, dtype=np.int64)
            near = distance <= most
            found.append(np.stack([first[near], second[near], distance[near]], axis=1))
    return np.unique(np.concatenate(found), axis=0)


def _as_number(bits: np.ndarray) -> np.ndarray:
    """(n,) uint64 of (n, at most 64) bits."""
    padded = np.zeros((len(bits), 8), dtype=np.uint8)
    packed = np.packbits(bits, axis=1)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)[:, 0]


def _sharing(keys: np.ndarray, others: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The pairs i < j with keys[i] == others[j], (n,) each, some millions at a time."""
    order = np.argsort(others, kind="stable")
    ordered = others[order]
    starts = np.searchsorted(ordered, keys, side="left")
    counts = np.searchsorted(ordered, keys, side="right") - starts
    ends = counts.cumsum()
    row = 0
    while row < len(keys):
        before = ends[row - 1] if row else 0
        last = max(row + 1, int(np.searchsorted(ends, before + AT_ONCE, side="right")))
        sizes = counts[row:last]
        first = np.repeat(np.arange(row, last), sizes)
        within = np.arange(len(first)) - np.repeat(sizes.cumsum() - sizes, sizes)
        second = order[np.repeat(starts[row:last], sizes) + within]
        forward = first < second
        yield first[forward], second[forward]
        row = last
