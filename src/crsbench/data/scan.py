"""The scan: every image of a data set read and decoded once, for the manifest and the audit."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.hashing import checksum
from crsbench.core.progress import progress
from crsbench.data.image_checks import measure
from crsbench.data.readers.identities import folded
from crsbench.images.canonical import check_canonical
from crsbench.images.checks import MissingExtraError
from crsbench.images.decoding import decode_as_stored
from crsbench.images.draws import REFERENCE_SIDE
from crsbench.images.scaling import DEFAULT, Scaling

MAX_BYTES_PER_PIXEL = 16
"""What a file may have for each pixel of `image.max_pixels`, and a megabyte, to be read at all."""


@dataclass(frozen=True)
class ScannedImage:
    """What one file turned out to be; `error` is empty for a whole image, else says what is wrong.

    mode: the mode in the file, before anything became RGB; largest: the largest value that is
    stored of 16-bit grey, else 0; constant: whether every pixel has the same colour;
    perceptual_hash, cropped_hashes: see `near_duplicates`; the rest: `image_checks.measure`.
    """

    path: str
    error: str = ""
    bytes: int = 0
    content_sha256: str = ""
    mode: str = ""
    width: int = 0
    height: int = 0
    largest: int = 0
    constant: bool = False
    perceptual_hash: str = ""
    cropped_hashes: str = ""
    low: int = 0
    high: int = 0
    mean: float = 0.0
    black: float = 0.0
    white: float = 0.0
    blank: int = 0
    blank_value: int = 0
    missing_data: bool = False


def scan_images(
    root: Path,
    paths: Sequence[str],
    *,
    label: str,
    max_pixels: int,
    cache_file: Path,
    workers: int,
    short_side: int = REFERENCE_SIDE,
    scaling: Scaling = DEFAULT,
) -> pd.DataFrame:
    """Scan the files `paths` below `root`: a row a path, in their order, columns of `ScannedImage`.

    A result is kept in `cache_file`, a line a file, and used again while the file's size and time
    of change stay the same: a scan that was killed goes on where it stopped. The result does not
    depend on the cache or on the number of worker processes.
    """
    made_with = f"{max_pixels} {short_side} {scaling}"
    stamps = [_stamp(root / path, made_with) for path in paths]
    known = _read_cache(cache_file)
    todo = [
        (path, stamp)
        for path, stamp in zip(paths, stamps, strict=True)
        if stamp is not None and (path, stamp) not in known
    ]
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    with cache_file.open("a", encoding="utf-8") as cache, _mapper(workers) as run:
        limits = {"max_pixels": max_pixels, "short_side": short_side, "scaling": scaling}
        scanned = run(partial(scan_image, root, **limits), [path for path, _ in todo])
        rows = zip(todo, progress(scanned, f"scan {label}", len(todo), "image"), strict=True)
        for (path, stamp), result in rows:
            known[path, stamp] = asdict(result)
            if result.content_sha256:  # a file that couldn't be read may be readable next time
                line = json.dumps([stamp, known[path, stamp]])
                cache.write(f"{checksum(line)} {line}\n")
                cache.flush()
    folders: dict[Path, list[str]] = {}
    return pd.DataFrame(
        [
            _missing(root, path, folders) if stamp is None else known[path, stamp]
            for path, stamp in zip(paths, stamps, strict=True)
        ]
    )


def _missing(root: Path, path: str, folders: dict[Path, list[str]]) -> dict[str, Any]:
    found = look_alike(root, path, folders)
    beside = f"; '{found}' is there" if found else ""
    return asdict(ScannedImage(path, f"the file is missing{beside}"))


def look_alike(root: Path, path: str, folders: dict[Path, list[str]]) -> str:
    """A file below `root` that differs from `path` in what people mistake; "" if there is none.

    That is case, spaces, leading zeros, backslashes, and at last the file's ending. folders: the
    names in each folder looked into so far, to which it adds.
    """
    place = Path()
    *parents, name = path.replace("\\", "/").split("/")
    for part in parents:
        if (root / place / part).is_dir():
            place /= part
            continue
        alike = [other for other in _names(root / place, folders) if folded(other) == folded(part)]
        if not alike:
            return ""
        place /= alike[0]
    for like in (folded, lambda name: folded(name.rpartition(".")[0] or name)):
        for other in _names(root / place, folders):
            if like(other) == like(name) and (root / place / other).is_file():
                return (place / other).as_posix()
    return ""


def _names(folder: Path, folders: dict[Path, list[str]]) -> list[str]:
    if folder not in folders:
        try:
            folders[folder] = sorted(os.listdir(folder))
        except OSError:
            folders[folder] = []
    return folders[folder]


def unscanned(paths: Sequence[str]) -> pd.DataFrame:
    """The same columns for files that nobody looks at: of each its path, and no error."""
    return pd.DataFrame([asdict(ScannedImage(path)) for path in paths])


def scan_image(
    root: Path,
    path: str,
    *,
    max_pixels: int,
    short_side: int = REFERENCE_SIDE,
    scaling: Scaling = DEFAULT,
) -> ScannedImage:
    """Read a file once: its hash, and its pixels as every encoder will get them.

    short_side: of the canonical image, which must not be too large (`check_canonical`).

    Raises MissingExtraError, which says nothing of the file.
    """
    try:
        size = (root / path).stat().st_size
        if size > 10**6 + MAX_BYTES_PER_PIXEL * max_pixels:
            return ScannedImage(path, f"the file has {size} bytes, too many for image.max_pixels")
        content = (root / path).read_bytes()
    except OSError as error:
        return ScannedImage(path, f"the file cannot be read: {error.strerror}")
    found = ScannedImage(
        path, bytes=len(content), content_sha256=hashlib.sha256(content).hexdigest()
    )
    try:
        image, mode, largest = decode_as_stored(root / path, max_pixels, scaling)
        check_canonical(root / path, image.size, short_side, max_pixels)
    except MissingExtraError:
        raise
    except UserError as error:
        reason = str(error).replace(str(root / path), path)
        return replace(found, error=reason)
    width, height = image.size
    form = {"mode": mode, "width": width, "height": height, "largest": largest}
    return replace(found, **form, **measure(image, content))


def _stamp(file: Path, made_with: str) -> str | None:
    """What a cached result depends on; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return f"{status.st_size} {status.st_mtime_ns} {made_with}"


def _read_cache(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    known = {}
    lines = file.read_bytes().decode(errors="replace").splitlines() if file.is_file() else ()
    for line in lines:
        try:
            written, _, text = line.partition(" ")
            if written != checksum(text):
                continue  # the half line of a killed scan, or one that was damaged
            stamp, result = json.loads(text)
            known[result["path"], stamp] = asdict(ScannedImage(**result))
        except (ValueError, TypeError, KeyError):
            continue  # a line of an older release
    return known


@contextmanager
def _mapper(workers: int) -> Iterator[Any]:
    """A `map` over worker processes, or in this one.

    Decoding holds the interpreter's lock, so threads would not help. Workers are forked: a spawned
    one would import the calling script anew, and Snakemake's scripts can't be imported.
    """
    if workers <= 1:
        yield map
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _die_with, (os.getpid(),)) as pool:
        try:
            yield partial(pool.map, chunksize=8)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # or it would go on to the last image
            raise


def _die_with(parent: int) -> None:
    """End this worker when its parent is gone: a killed job must not leave processes behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
