"""One image of each data set that may be shown, under every condition."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from crsbench.core.hashing import sha256_number
from crsbench.core.names import CLEAN, degraded_conditions
from crsbench.data.manifest import read_manifest
from crsbench.features.settings import ImageSettings
from crsbench.images.canonical import read_canonical, resize_short_side
from crsbench.images.perturbations import perturb
from crsbench.report.material import kind_title

TILE_SIDE = 176
"""Short side of a picture on the page, in pixels."""


def gallery(
    settings: ImageSettings, manifests: Mapping[str, Path | str], titles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """For each data set of `manifests` its title and its tiles: label, size, address.

    The image is the one whose id has the smallest SHA-256. It is degraded as for the encoders, then
    shrunk. Raises UserError when it cannot be read.
    """
    shown = []
    for name, file in manifests.items():
        manifest = read_manifest(file)
        pairs = zip(manifest.image_ids, manifest.paths, strict=True)
        image_id, path = min(pairs, key=lambda pair: sha256_number("gallery", pair[0]))
        source = settings.roots[name] / path
        limits = settings.short_side, settings.max_pixels
        clean = read_canonical(source, *limits, settings.scalings[name])
        tiles = [_tile(clean, CLEAN)]
        for condition in degraded_conditions(settings.levels):
            degraded = perturb(clean, condition, image_id, settings.levels)
            tiles.append(_tile(degraded, _label(condition, settings.levels)))
        shown.append({"title": titles[name], "tiles": tiles})
    return shown


def _label(condition: str, levels: Mapping[str, Sequence[float]]) -> str:
    """`jpeg-3` as `JPEG 3: 10`, with the level of the config."""
    kind, severity = condition.rsplit("-", 1)
    return f"{kind_title(kind)} {severity}: {levels[kind][int(severity) - 1]:g}"


def _tile(image: Image.Image, label: str) -> dict[str, Any]:
    small = resize_short_side(image, TILE_SIDE)
    content = io.BytesIO()
    small.save(content, "WEBP", quality=85)
    address = f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
    return {"label": label, "src": address, "width": small.width, "height": small.height}
