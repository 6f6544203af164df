"""What a job that embeds images is given, and what of that decides a feature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from crsbench.config.model import Config, EncoderEntry
from crsbench.config.sources import image_root
from crsbench.images.scaling import Scaling


@dataclass(frozen=True)
class ImageSettings:
    """How images are read and degraded.

    short_side: of the canonical image, in pixels; max_pixels: what an image may have at most;
    levels: by kind of perturbation its severities; roots: the folder of each data set's images;
    scalings: how its grey values become 8 bit.
    """

    short_side: int
    max_pixels: int
    levels: Mapping[str, Sequence[float]]
    roots: Mapping[str, Path]
    scalings: Mapping[str, Scaling]

    @classmethod
    def of(cls, config: Config, datasets: Iterable[str], *, degraded: bool = True) -> Self:
        """degraded: whether the images are seen under the perturbations too."""
        names = list(datasets)
        return cls(
            **config.settings["image"],
            levels=config.perturbations if degraded else {},
            roots={name: image_root(config, name) for name in names},
            scalings={name: Scaling.of(config.dataset(name).spec) for name in names},
        )


@dataclass(frozen=True)
class ExtractionSettings:
    """Which encoders embed which images, and how.

    device: cpu or cuda; precision: of the forward pass; batch_size: views at once. Where things
    lie: home, which own encoders are imported from, and weights_root.
    """

    encoders: Sequence[EncoderEntry]
    images: ImageSettings
    device: str
    precision: str
    batch_size: int
    home: Path
    weights_root: Path

    @classmethod
    def of(
        cls,
        config: Config,
        encoders: Iterable[str],
        datasets: Iterable[str],
        *,
        degraded: bool = True,
    ) -> Self:
        extraction = config.settings["extraction"]
        return cls(
            encoders=[config.encoders[name] for name in encoders],
            images=ImageSettings.of(config, datasets, degraded=degraded),
            **{name: extraction[name] for name in ("device", "precision", "batch_size")},
            home=config.home,
            weights_root=config.weights_root,
        )

    def clean(self) -> Self:
        """The same for images that are seen as they are alone."""
        return replace(self, images=replace(self.images, levels={}))

    @property
    def made_by(self) -> dict[str, dict[str, Any]]:
        """By encoder what decides its features, as plain values; not where things lie.

        A rule gives it to Snakemake to compare, and the feature files hold it.
        """
        common = {
            "short_side": self.images.short_side,
            "max_pixels": self.images.max_pixels,
            "perturbations": {kind: list(levels) for kind, levels in self.images.levels.items()},
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
        }
        return {entry.name: {"encoder": entry.feature_spec, **common} for entry in self.encoders}
