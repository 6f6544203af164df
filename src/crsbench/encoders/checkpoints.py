"""The layouts of the checkpoints that no library reads: from the owners' tensor names to timm's.

A translation renames and drops what its comments name, and nothing else: whatever it does not know
stays, and the strict loading that follows refuses it by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """wrapper: the key that the tensors stand under, in a checkpoint that is no bare mapping."""

    wrapper: str | None
    translate: Callable[[Tensors, torch.nn.Module], dict[str, torch.Tensor]]


def _without(tensors: Tensors, *prefixes: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def _below(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors below a prefix, by their names without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def panderm(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """PanDerm: a BEiT-style transformer as a timm VisionTransformer with layer scale.

    The large file holds the whole pre-training model, the encoder below `encoder.`; the base file
    holds the encoder alone. Queries and values have biases, keys have none.
    """
    del model
    if any(name.startswith("encoder.") for name in tensors):
        tensors = _below(tensors, "encoder.")
    # The token that stands in for masked patches: pre-training only.
    found = _without(tensors, "mask_token")
    for name in [name for name in found if name.endswith(".attn.q_bias")]:
        values = name.replace("q_bias", "v_bias")
        if values in found:
            query, value = found.pop(name), found.pop(values)
            found[name.replace("q_bias", "qkv.bias")] = torch.cat(
                [query, torch.zeros_like(query), value]
            )
    return {
        name.replace(".gamma_1", ".ls1.gamma").replace(".gamma_2", ".ls2.gamma"): tensor
        for name, tensor in found.items()
    }


def retfound_mae(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """RETFound (MAE): the encoder, pooled over patches through a fresh LayerNorm, as its owners do.

    The mask token and the decoder are pre-training's. The trained final `norm` is not used by the
    owners' pooled feature: their `fc_norm` is no part of the checkpoint and starts as the identity
    scaling (weight 1, bias 0).
    """
    width = model.num_features
    kept = _without(tensors, "mask_token", "decoder_", "norm.")
    return {**kept, "fc_norm.weight": torch.ones(width), "fc_norm.bias": torch.zeros(width)}


def retfound_dinov2(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """RETFound (DINOv2): the teacher's backbone; its heads and mask token are pre-training's.

    The position embedding is brought to the model's grid as the owners do: bicubic, without
    antialiasing.
    """
    kept = _without(tensors, "dino_head.", "ibot_head.", "backbone.mask_token")
    found = {
        name.removeprefix("backbone.")
        .replace("mlp.w12.", "mlp.fc1.")
        .replace("mlp.w3.", "mlp.fc2."): tensor
        for name, tensor in kept.items()
    }
    if "pos_embed" in found and found["pos_embed"].shape != model.pos_embed.shape:
        found["pos_embed"] = resample_abs_pos_embed(
            found["pos_embed"], list(model.patch_embed.grid_size), antialias=False
        )
    return found


def biovil(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """BioViL: the image trunk, a ResNet-50 by torchvision's names.

    Its ImageNet classifier `fc` is never called; the projector leads to the 128-d joint space.
    """
    del model
    kept = _without(tensors, "projector.", "encoder.encoder.fc.")
    return {name.removeprefix("encoder.encoder."): tensor for name, tensor in kept.items()}


def biovil_t(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """BioViL-T: the static half (256) of its image embedding, as a ResNet-50 with a linear head.

    The head is the 1 × 1 convolution `backbone_to_vit`, which has no bias: applied to the mean of
    the feature map it gives the mean of its own output. The pooler compares with a previous image,
    and without one the other half of the embedding is `missing_previous_emb`, the same for every
    image: neither is used.
    """
    width = model.num_classes
    kept = _without(tensors, "encoder.vit_pooler.", "encoder.missing_previous_emb")
    found = biovil(kept, model)
    if "encoder.backbone_to_vit.weight" in found:
        found["fc.weight"] = found.pop("encoder.backbone_to_vit.weight").flatten(1)
        found["fc.bias"] = torch.zeros(width)
    return found


LAYOUTS: Mapping[str, Layout] = {
    "panderm": Layout("model", panderm),
    "retfound_mae": Layout("model", retfound_mae),
    "retfound_dinov2": Layout("teacher", retfound_dinov2),
    "biovil": Layout(None, biovil),
    "biovil_t": Layout(None, biovil_t),
}
