"""Image towers of the open_clip library: the tower alone, so that no text model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import _build_vision_tower as build_vision_tower
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.encoders.base import block_numbers, without
from crsbench.encoders.timm_encoder import TimmEncoder
from crsbench.weights.files import beside, fetch
from crsbench.weights.tensors import (
    fetch_tensors,
    freeze,
    load_strictly,
    read_json,
    sha256_of_tensors,
)

# The rest of the library's models: the text tower as CLIP has it, or as a module of its own, and
# the loss's two numbers.
_TEXT_AND_LOSS = (
    *("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection"),
    *("text.", "logit_scale", "logit_bias"),
)


class ClipEncoder(torch.nn.Module):
    """CLIP's own transformer, with its projection or, with `proj` None, without."""

    def __init__(self, tower: VisionTransformer) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.tower(images)

    has_final_norm = True

    @property
    def width(self) -> int:
        proj = self.tower.proj
        return self.tower.ln_post.normalized_shape[0] if proj is None else proj.shape[1]

    @property
    def block_count(self) -> int:
        return len(self.tower.transformer.resblocks)

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], *, final_norm: bool = True
    ) -> list[torch.Tensor]:
        """The final norm, pooling and projection applied after shares of the blocks."""
        numbers = block_numbers(depths, self.block_count)
        outputs = self.tower.forward_intermediates(
            images,
            indices=[number - 1 for number in numbers],
            output_fmt="NLC",
            output_extra_tokens=True,
            intermediates_only=True,
        )
        pairs = zip(
            outputs["image_intermediates_prefix"], outputs["image_intermediates"], strict=True
        )
        tokens = [torch.cat(pair, dim=1) for pair in pairs]
        pooled = [
            self._pooled(of_block, final_norm or number == self.block_count)
            for number, of_block in zip(numbers, tokens, strict=True)
        ]
        return pooled if self.tower.proj is None else [x @ self.tower.proj for x in pooled]

    def _pooled(self, tokens: torch.Tensor, normed: bool) -> torch.Tensor:
        if normed:
            return self.tower._pool(tokens)[0]
        with without(self.tower, "ln_post"):
            return self.tower._pool(tokens)[0]


class TrunkEncoder(torch.nn.Module):
    """A timm trunk under open_clip's projection head, which may be an identity."""

    def __init__(self, tower: TimmModel, width: int) -> None:
        super().__init__()
        self.tower = tower
        self.width = width

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.tower(images)

    @property
    def block_count(self) -> int:
        return TimmEncoder(self.tower.trunk).block_count

    @property
    def has_final_norm(self) -> bool:
        return TimmEncoder(self.tower.trunk).has_final_norm

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], *, final_norm: bool = True
    ) -> list[torch.Tensor]:
        """The trunk's behind the head, whose width of a trunk in stages the last alone has."""
        *earlier, last = TimmEncoder(self.tower.trunk).blocks(images, depths, final_norm=final_norm)
        if self.has_final_norm:
            earlier = [self.tower.head(x) for x in earlier]
        return [*earlier, self.tower.head(last) if depths[-1] == 1 or self.has_final_norm else last]


class NetworkEncoder(torch.nn.Module):
    """CLIP's own residual network, whose attention pools and projects in one step."""

    has_final_norm = False
    block_count = 4

    def __init__(self, tower: ModifiedResNet) -> None:
        super().__init__()
        self.tower = tower

    @property
    def width(self) -> int:
        return self.tower.output_dim

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.tower(images)

    def blocks(self, images: torch.Tensor, depths: Sequence[float]) -> list[torch.Tensor]:
        """The means of the stages' maps, and the network's own feature behind the last."""
        stages = block_numbers(depths, self.block_count)
        found = self.tower.forward_intermediates(images, indices=stages)
        means = [values.mean(dim=(2, 3)) for values in found["image_intermediates"]]
        return [*means[:-1], found["image_features"]] if stages[-1] == 4 else means


Tower = VisionTransformer | TimmModel | ModifiedResNet
OpenClipEncoder = ClipEncoder | TrunkEncoder | NetworkEncoder


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[OpenClipEncoder, str]:
    """Build the image tower and load it from the `visual.` part of the weights.

    The model is one of open_clip's own configurations or the `open_clip_config.json` beside the
    weights; `architecture` changes the latter's or the former's `vision_cfg`. The feature `pooled`
    stands before the projection to the joint space, `projected` behind it.
    """
    del home
    config = _configuration(entry, weights_root)
    tower = _tower(entry, config)
    tensors = fetch_tensors(
        entry, weights_root, prefixes=["visual."], ignored_tensors=_TEXT_AND_LOSS
    )
    load_strictly(tower, tensors, entry.name)
    digest = sha256_of_tensors(tower.state_dict())
    return freeze(_encoder(entry, config, tower), device), digest


def build(entry: EncoderEntry, weights_root: Path) -> OpenClipEncoder:
    """The entry's encoder with random weights."""
    config = _configuration(entry, weights_root)
    return _encoder(entry, config, _tower(entry, config))


def _tower(entry: EncoderEntry, config: Mapping[str, Any]) -> Tower:
    vision = {**config["vision_cfg"], **entry.spec.get("architecture", {})}
    try:
        tower = build_vision_tower(config["embed_dim"], vision, config.get("quick_gelu", False))
    except Exception as error:  # any argument may be wrong in any way
        reason = " ".join(str(error).split())
        raise UserError(f"Encoder '{entry.name}': open_clip can't build it: {reason}") from error
    if not isinstance(tower, Tower):
        raise UserError(
            f"Encoder '{entry.name}': {type(tower).__name__} is no tower that this release runs "
            "(allowed: open_clip's VisionTransformer and ModifiedResNet, and timm trunks)."
        )
    return tower


def _encoder(entry: EncoderEntry, config: Mapping[str, Any], tower: Tower) -> OpenClipEncoder:
    pooled = entry.spec["feature"] == "pooled"
    if pooled:
        vision = {**config["vision_cfg"], **entry.spec.get("architecture", {})}
        _drop_projection(tower, vision, entry.name)
    if isinstance(tower, VisionTransformer):
        tower.output_tokens = False  # of CoCa: its captions' tokens beside the feature
        return ClipEncoder(tower)
    if isinstance(tower, TimmModel):
        return TrunkEncoder(tower, tower.trunk.num_features if pooled else config["embed_dim"])
    return NetworkEncoder(tower)


def _drop_projection(tower: Tower, vision: Mapping[str, Any], encoder: str) -> None:
    """Let the tower end before its projection, which is built in one of four places."""
    if isinstance(tower, ModifiedResNet) or vision.get("timm_pool") in ("abs_attn", "rot_attn"):
        raise UserError(
            f"Encoder '{encoder}': feature is pooled, but its attention pools and projects in one "
            "step; allowed: projected."
        )
    if isinstance(tower, VisionTransformer):
        tower.proj = None
        return
    tower.head = torch.nn.Identity()
    if not vision.get("timm_proj", "linear"):  # then the projection is the trunk's own classifier
        tower.trunk.reset_classifier(0)


def _configuration(entry: EncoderEntry, weights_root: Path) -> Mapping[str, Any]:
    if entry.configuration_file is not None:
        file = fetch(entry, weights_root, beside(entry, entry.configuration_file))
        return read_json(file, entry.name)["model_cfg"]
    config = open_clip.get_model_config(entry.spec["model"])
    if config is None:
        raise UserError(
            f"Encoder '{entry.name}': open_clip has no model '{entry.spec['model']}'; "
            "open_clip_config.json is the one beside the weights."
        )
    return config
