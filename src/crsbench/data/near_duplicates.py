"""Near duplicates: images whose perceptual hashes are almost equal.

The hash is the DCT hash: the picture in grey at 64 × 64, its two-dimensional discrete cosine
transform, one bit for each of the 16 × 16 lowest frequencies: whether the coefficient is above
their median (the well-known pHash, with 256 bits in place of 64, since radiographs and fundus
photographs of one kind are too much alike for 64).
"""

from __future__ import annotations

import numpy as np
from PIL import Image

SIDE, FREQUENCIES = 64, 16
BITS = FREQUENCIES * FREQUENCIES


def perceptual_hash(image: Image.Image) -> str:
    """The 256-bit DCT hash of an RGB or grey image, as 64 hexadecimal digits."""
    grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    from scipy.fft import dctn  # here: every job imports this module, few hash images

    low = dctn(np.asarray(grey, dtype=np.float64), norm="ortho")[:FREQUENCIES, :FREQUENCIES]
    return np.packbits(low.ravel() > np.median(low)).tobytes().hex()


def near_pairs(hashes: np.ndarray, most: int) -> np.ndarray:
    """(m, 3) of i, j, distance: the pairs i < j of (n,) hashes that differ in `most` bits or fewer.

    Exact: cut into most + 1 bands, two such hashes agree in at least one band whole, so only hashes
    that share a band are compared. Raises ValueError for fewer than 3 bits.
    """
    if most < 3:
        raise ValueError(f"most is {most}; a band of more than 64 bits does not fit a number.")
    if len(hashes) == 0:
        return np.empty((0, 3), dtype=np.int64)
    packed = np.stack([np.frombuffer(bytes.fromhex(text), dtype=np.uint8) for text in hashes])
    bits, words = np.unpackbits(packed, axis=1), packed.view(np.uint64)
    found = [
        _pairs_in(bucket, words, most)
        for band in np.array_split(np.arange(BITS), most + 1)
        for bucket in _buckets(_as_number(bits[:, band]))
    ]
    pairs = np.concatenate([np.empty((0, 3), dtype=np.int64), *found])
    return np.unique(pairs, axis=0)


def _as_number(bits: np.ndarray) -> np.ndarray:
    """(n,) uint64 of (n, at most 64) bits."""
    padded = np.zeros((len(bits), 8), dtype=np.uint8)
    packed = np.packbits(bits, axis=1)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)[:, 0]


def _buckets(keys: np.ndarray) -> list[np.ndarray]:
    """The rows, in groups of two and more, whose keys (n,) are equal."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(starts, append=len(keys))
    return [
        order[start : start + size]
        for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True)
    ]


def _pairs_in(rows: np.ndarray, words: np.ndarray, most: int) -> np.ndarray:
    pairs = []
    for place, row in enumerate(rows[:-1]):
        others = rows[place + 1 :]
        distance = np.bitwise_count(words[others] ^ words[row]).sum(axis=1, dtype=np.int64)
        near = distance <= most
        if near.any():
            pairs.append(np.stack([np.full(near.sum(), row), others[near], distance[near]], axis=1))
    return np.concatenate([np.empty((0, 3), dtype=np.int64), *pairs])
