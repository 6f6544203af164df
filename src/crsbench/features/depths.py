"""Features at several depths of an encoder, in one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from crsbench.core.errors import UserError
from crsbench.core.names import CLEAN
from crsbench.data.manifest import read_manifest
from crsbench.encoders import BlockEncoder, LoadedEncoder, load_encoder
from crsbench.features.jobs import extract_views, job_device
from crsbench.features.settings import ExtractionSettings
from crsbench.features.store import FeatureWriter, read_features

APPLIED, LEFT_OUT, HAS_NONE = "applied", "left out", "has none"
"""What becomes of the encoder's final norm at a depth below 100 %."""


@dataclass
class AtDepths:
    """An encoder that gives its features at several depths side by side, (n, sum of widths).

    depths: in percent, ascending; norm: one of the three words above; widths: of each depth, known
    after the first batch.
    """

    name: str
    encode: BlockEncoder
    depths: Sequence[int]
    norm: str
    widths: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, encoder: LoadedEncoder, depths: Sequence[int], without_norm: bool) -> AtDepths:
        """Raises UserError for an encoder without depths, or without a norm to leave out."""
        if not isinstance(encoder.encode, BlockEncoder):
            raise UserError(
                f"The encoder '{encoder.name}' of depth_sweep gives no features by depth: it has "
                "no method `blocks`."
            )
        has_norm = getattr(encoder.encode, "has_final_norm", False)
        if without_norm and not has_norm:
            raise UserError(
                f"depth_sweep.without_norm names the encoder '{encoder.name}', whose blocks are "
                "followed by no norm that could be left out."
            )
        norm = LEFT_OUT if without_norm else APPLIED if has_norm else HAS_NONE
        return cls(encoder.name, encoder.encode, depths, norm)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        shares = [depth / 100 for depth in self.depths]
        changes = {"final_norm": False} if self.norm == LEFT_OUT else {}
        try:
            features = self.encode.blocks(images, shares, **changes)
        except ValueError as error:
            raise UserError(f"The encoder '{self.name}' of depth_sweep: {error}") from error
        self.widths = [feature.shape[1] for feature in features]
        return torch.cat(list(features), dim=1)


def extract_depths(
    settings: ExtractionSettings,
    *,
    without_norm: bool,
    manifest_file: Path | str,
    outputs: Mapping[int, Path | str],
    workers: int,
) -> None:
    """Extract the clean features of a data set at several depths (percent: file) in one pass.

    settings: of one encoder; without_norm: whether its final norm is left out below 100 %.
    """
    count = len(read_manifest(manifest_file).image_ids)
    depths = sorted(outputs)
    all_depths = Path(outputs[depths[0]]).with_name("all-depths.arrow")
    (entry,) = settings.encoders
    with job_device(settings.device) as device:
        encoder = load_encoder(entry, settings.home, settings.weights_root, device)
        view = AtDepths.of(encoder, depths, without_norm)
        images = manifest_file, [(CLEAN,)] * count
        files = {entry.name: {CLEAN: all_depths}}
        seen = replace(encoder, encode=view)
        about = {"depths": depths, "norm": view.norm}
        how = {"device": device, "workers": workers, "about": about}
        extract_views(settings, [seen], *images, files, **how)
    _divide(all_depths, view, outputs)
    all_depths.unlink()


def _divide(file: Path, view: AtDepths, outputs: Mapping[int, Path | str]) -> None:
    """Write each depth's columns to a file of its own."""
    features = read_features(file)
    start = 0
    for depth, width in zip(view.depths, view.widths, strict=True):
        metadata = {**features.metadata, "depth": depth}
        columns = features.matrix[:, start : start + width]
        with FeatureWriter(outputs[depth], metadata) as writer:
            for image_id, row in zip(features.image_ids, columns, strict=True):
                writer.append(str(image_id), row)
        start += width
