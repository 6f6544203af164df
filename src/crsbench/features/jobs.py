"""One extraction job: an encoder over the images of one data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from crsbench.config import CLEAN, Config, EncoderEntry
from crsbench.data.manifest import read_manifest
from crsbench.data.splits import read_test
from crsbench.encoders import load_encoder
from crsbench.errors import UserError
from crsbench.features.agreement import check_agreement
from crsbench.features.extraction import ImageViews, extract
from crsbench.threads import use_one_thread


def extract_features(
    config: Config,
    entry: EncoderEntry,
    *,
    image_root: Path,
    manifest_file: Path | str,
    test_file: Path | str | None,
    outputs: Sequence[Path | str],
    workers: int,
) -> None:
    """Extract the features of a data set, one output file a condition.

    With a test file the outputs are named `{condition}.arrow`: clean holds every image, a degraded
    condition the test images. Without one the data set is a shift target: one output, its clean
    images. Before the first image is extracted a sample must agree between batches and, in a
    reduced precision, with float32 (`check_agreement`).
    """
    manifest = read_manifest(manifest_file)
    if test_file is None:
        files = {CLEAN: Path(outputs[0])}
        is_test = np.zeros(len(manifest.image_ids), dtype=bool)
    else:
        files = {Path(output).stem: Path(output) for output in outputs}
        is_test = read_test(test_file, manifest)
    settings = config.settings["extraction"]
    device = torch.device(settings["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("extraction.device is cuda, but torch finds no CUDA device; allowed: cpu.")
    use_one_thread()
    encoder = load_encoder(entry, config.home, config.weights_root, device)
    views = ImageViews(
        files=[image_root / path for path in manifest.paths],
        image_ids=list(manifest.image_ids),
        conditions=[tuple(files) if tested else (CLEAN,) for tested in is_test],
        preprocessing=encoder.preprocessing,
        levels=config.perturbations,
        short_side=config.settings["image"]["short_side"],
        max_pixels=config.settings["image"]["max_pixels"],
    )
    how = {name: settings[name] for name in ("batch_size", "precision")}
    check_agreement(encoder, views, device=device, **how)
    metadata = {"dataset": manifest.dataset}
    extract(encoder, views, files, device=device, workers=workers, metadata=metadata, **how)
