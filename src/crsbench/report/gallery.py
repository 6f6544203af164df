"""One image of each data set that may be shown, under every condition."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from crsbench.config.grid import Grid
from crsbench.config.layout import Layout
from crsbench.config.model import Config
from crsbench.core.hashing import sha256_number
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.data.readers import image_root
from crsbench.images.canonical import read_canonical, resize_short_side
from crsbench.images.perturbations import perturb
from crsbench.report.material import kind_title

TILE_SIDE = 176
"""Short side of a picture on the page, in pixels."""


def gallery(
    config: Config, layout: Layout, manifests: Mapping[str, Path | str]
) -> list[dict[str, Any]]:
    """For each data set of `manifests` its title and its tiles: label, size, address.

    The image is the one whose id has the smallest SHA-256. It is degraded as for the encoders, then
    shrunk. Raises UserError when it cannot be read.
    """
    image = config.settings["image"]
    shown = []
    for name, file in manifests.items():
        manifest = read_manifest(file)
        pairs = zip(manifest.image_ids, manifest.paths, strict=True)
        image_id, path = min(pairs, key=lambda pair: sha256_number("gallery", pair[0]))
        file = image_root(config, layout, name) / path
        clean = read_canonical(file, image["short_side"], image["max_pixels"])
        tiles = [_tile(clean, CLEAN)]
        for condition in Grid(config).degraded:
            degraded = perturb(clean, condition, image_id, config.perturbations)
            tiles.append(_tile(degraded, _label(condition, config.perturbations)))
        shown.append({"title": config.dataset(name).title, "tiles": tiles})
    return shown


def _label(condition: str, levels: Mapping[str, tuple[float, ...]]) -> str:
    """`jpeg-3` as `JPEG 3: 10`, with the level of the config."""
    kind, severity = condition.rsplit("-", 1)
    return f"{kind_title(kind)} {severity}: {levels[kind][int(severity) - 1]:g}"


def _tile(image: Image.Image, label: str) -> dict[str, Any]:
    small = resize_short_side(image, TILE_SIDE)
    content = io.BytesIO()
    small.save(content, "WEBP", quality=85)
    address = f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
    return {"label": label, "src": address, "width": small.width, "height": small.height}
