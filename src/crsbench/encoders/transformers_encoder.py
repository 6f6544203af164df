"""Image towers of the transformers library, also out of larger models that hold one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from crsbench.config import EncoderEntry, nearest
from crsbench.encoders.base import block_numbers, without
from crsbench.encoders.weights import (
    beside,
    fetch,
    fetch_tensors,
    freeze,
    load_strictly,
    read_json,
    sha256_of_tensors,
)
from crsbench.errors import UserError


@dataclass(frozen=True)
class Family:
    """A tower class: the names of its final norm and block list, and its count of class tokens.

    norms_patches: whether the library's last hidden state is normed (CLIP norms its class token
    alone).
    """

    norm: str
    layers: str
    class_tokens: int
    norms_patches: bool


_FAMILIES = {
    "CLIPVisionModel": Family("post_layernorm", "layers", 1, norms_patches=False),
    "Dinov2Model": Family("layernorm", "layer", 1, norms_patches=True),
    "SiglipVisionModel": Family("post_layernorm", "layers", 0, norms_patches=True),
}

# The numbers 0, 1, 2 … of the positions, which the library saved until 4.31 and derives since.
_DERIVED = {"embeddings.position_ids"}


class TransformersEncoder(torch.nn.Module):
    """A tower and its pooling.

    feature: `pooled` is the library's own (the normed class token; SigLIP's attention-pooling
    head), `mean_patches` the mean of the patch tokens as the library's last hidden state has them.
    """

    def __init__(
        self, tower: torch.nn.Module, family: Family, feature: Literal["pooled", "mean_patches"]
    ) -> None:
        super().__init__()
        self.tower = tower
        self.family = family
        self.feature = feature

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output = self.tower(pixel_values=images)
        if self.feature == "pooled":
            return output.pooler_output
        return self._mean_patches(output.last_hidden_state)

    @property
    def has_final_norm(self) -> bool:
        """Whether the feature is normed: not the mean of CLIP's patch tokens."""
        return self.feature == "pooled" or self.family.norms_patches

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], *, final_norm: bool = True
    ) -> list[torch.Tensor]:
        """The norm and the pooling applied after shares of the blocks."""
        count = len(getattr(self.tower.encoder, self.family.layers))
        numbers = block_numbers(depths, count)
        states = self.tower(pixel_values=images, output_hidden_states=True).hidden_states
        return [self._pooled(states[number], final_norm or number == count) for number in numbers]

    def _pooled(self, tokens: torch.Tensor, normed: bool) -> torch.Tensor:
        if normed:
            return self._pool(tokens)
        with without(self.tower, self.family.norm):
            return self._pool(tokens)

    def _pool(self, tokens: torch.Tensor) -> torch.Tensor:
        norm = getattr(self.tower, self.family.norm)
        if self.feature == "mean_patches":
            return self._mean_patches(norm(tokens) if self.family.norms_patches else tokens)
        return self.tower.head(norm(tokens)) if _has_head(self.tower) else norm(tokens)[:, 0]

    def _mean_patches(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, self.family.class_tokens :].mean(dim=1)


def _has_head(tower: torch.nn.Module) -> bool:
    return hasattr(tower, "head")


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[TransformersEncoder, str]:
    """Build the tower and load it, in float32 whatever the checkpoint's type.

    Its configuration is `architecture` or the `config.json` beside the weights, of which a model
    with several towers holds the image tower's below `vision_config`.
    """
    del home
    tower = _build(entry, weights_root)
    tensors = fetch_tensors(entry, weights_root, prefixes=entry.prefixes)
    for name in _DERIVED & tensors.keys():
        del tensors[name]
    load_strictly(tower, tensors, entry.name)
    digest = sha256_of_tensors(tower.state_dict())
    family, feature = _FAMILIES[entry.spec["model"]], entry.spec["feature"]
    if feature == "pooled" and not family.class_tokens and not _has_head(tower):
        raise UserError(
            f"Encoder '{entry.name}' has neither a pooling head nor a class token, so it has no "
            "pooled feature; allowed: mean_patches."
        )
    _cut(tower, family, entry)
    return freeze(TransformersEncoder(tower, family, feature), device), digest


def _build(entry: EncoderEntry, weights_root: Path) -> torch.nn.Module:
    name = entry.spec["model"]
    if name not in _FAMILIES:
        raise UserError(
            f"Encoder '{entry.name}': the model '{name}' of transformers is not one that this "
            f"release runs (allowed: {', '.join(_FAMILIES)})."
        )
    model_class = getattr(transformers, name)
    settings = _settings(entry, weights_root, model_class.config_class)
    try:
        return model_class(model_class.config_class.from_dict({**settings, "dtype": "float32"}))
    except Exception as error:  # any setting may be wrong in any way
        reason = " ".join(str(error).split())
        raise UserError(f"Encoder '{entry.name}': {name} can't be built: {reason}") from error


def _settings(entry: EncoderEntry, weights_root: Path, config_class: type) -> Mapping[str, Any]:
    settings = entry.spec.get("architecture")
    if settings is None:
        file = fetch(entry, weights_root, beside(entry, "config.json"))
        settings = read_json(file, entry.name)
        return settings.get("vision_config", settings)
    known = config_class().to_dict()
    for key in settings:  # the library itself takes any key and ignores it
        if key not in known:
            raise UserError(
                f"Encoder '{entry.name}': unknown key '{key}' in architecture{nearest(key, known)}."
            )
    return settings


def _cut(tower: torch.nn.Module, family: Family, entry: EncoderEntry) -> None:
    """Drop the blocks behind the one whose output is the feature."""
    layers = getattr(tower.encoder, family.layers)
    kept = entry.spec.get("cut_to_blocks", len(layers))
    if kept > len(layers):
        raise UserError(
            f"Encoder '{entry.name}': cut_to_blocks is {kept}, the tower has {len(layers)} blocks."
        )
    setattr(tower.encoder, family.layers, layers[:kept])
