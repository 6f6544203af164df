"""One extraction job: an encoder, or several side by side, over the images of one data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crsbench.core.errors import UserError
from crsbench.core.gpu_lock import leased_gpu
from crsbench.core.hashing import sha256_of_file
from crsbench.core.memory import keep_freed_memory
from crsbench.core.names import CLEAN
from crsbench.core.threads import use_one_thread
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.splits import read_test
from crsbench.encoders import LoadedEncoder, load_encoder
from crsbench.features.extraction import ImageViews, extract, geometries_of
from crsbench.features.precision_check import check_precision
from crsbench.features.settings import ExtractionSettings, ImageSettings


def extract_features(
    settings: ExtractionSettings,
    *,
    manifest_file: Path | str,
    test_file: Path | str | None,
    outputs: Sequence[Path | str],
    workers: int,
) -> None:
    """Extract the features of a data set: by encoder one output file a condition.

    The outputs lie in folders `{encoder}/{dataset}`. With a test file they are named
    `{condition}.arrow`: clean holds every image, a degraded condition the test images. Without one
    the data set is a shift target: one output an encoder, its clean images. Before the first image
    is extracted a sample must agree between batches and, in a reduced precision, with float32
    (`check_precision`).
    """
    manifest = read_manifest(manifest_file)
    is_test = np.zeros(len(manifest.image_ids), dtype=bool)
    if test_file is not None:
        is_test = read_test(test_file, manifest)
    files: dict[str, dict[str, Path]] = {entry.name: {} for entry in settings.encoders}
    for output in map(Path, outputs):
        condition = CLEAN if test_file is None else output.stem
        files[output.parent.parent.name][condition] = output
    conditions = tuple(files[settings.encoders[0].name])
    seen = [conditions if tested else (CLEAN,) for tested in is_test]
    with job_device(settings.device) as device:
        encoders = [
            load_encoder(entry, settings.home, settings.weights_root, device)
            for entry in settings.encoders
        ]
        how = {"device": device, "workers": workers}
        extract_views(settings, encoders, manifest_file, seen, files, **how)


def extract_views(
    settings: ExtractionSettings,
    encoders: Sequence[LoadedEncoder],
    manifest_file: Path | str,
    conditions: Sequence[Sequence[str]],
    files: Mapping[str, Mapping[str, Path]],
    *,
    device: torch.device,
    workers: int,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Extract the features of chosen views: by encoder, each condition's file.

    conditions: those of each image of the manifest; an image without any is passed by. about: what
    else made the features, for the files' metadata.
    """
    manifest = read_manifest(manifest_file)
    how = {"batch_size": settings.batch_size, "precision": settings.precision}
    rows = [row for row, names in enumerate(conditions) if names]
    views = views_of(settings.images, manifest, rows, encoders, [conditions[row] for row in rows])
    for encoder in encoders:
        check_precision(encoder, views, device=device, **how)
    made_from = {"dataset": manifest.dataset, "manifest_sha256": sha256_of_file(manifest_file)}
    how |= {"metadata": {**(about or {}), **made_from}, "made_by": settings.made_by}
    extract(encoders, views, files, device=device, workers=workers, **how)


def views_of(
    settings: ImageSettings,
    manifest: Manifest,
    rows: Sequence[int],
    encoders: Sequence[LoadedEncoder],
    conditions: Sequence[Sequence[str]],
) -> ImageViews:
    """The views of some rows of a manifest, each under its conditions."""
    root = settings.roots[manifest.dataset]
    return ImageViews(
        files=[root / manifest.paths[row] for row in rows],
        image_ids=[str(manifest.image_ids[row]) for row in rows],
        conditions=conditions,
        geometries=geometries_of(encoders),
        levels=settings.levels,
        short_side=settings.short_side,
        max_pixels=settings.max_pixels,
        scaling=settings.scalings[manifest.dataset],
    )


@contextmanager
def job_device(kind: str) -> Iterator[torch.device]:
    """The device of a job: one thread of the CPU, or a GPU that no other job has."""
    use_one_thread()
    keep_freed_memory()
    if kind == "cpu":
        yield torch.device(kind)
        return
    if not torch.cuda.is_available():
        raise UserError("extraction.device is cuda, but torch finds no CUDA device; allowed: cpu.")
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    with leased_gpu([str(gpu.uuid) for gpu in gpus]) as index:
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)
