"""The layouts of the checkpoints that no library reads: from the owners' tensor names to timm's.

A translation renames what its comments name, and nothing else: whatever it does not know stays, and
the strict loading that follows refuses it by its name. What the image tower has no use for stands
in the registry (`ignored_tensors`) and is not among the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class CheckpointLayout:
    """wrapper: the key that the tensors stand under, in a checkpoint that is no bare mapping."""

    wrapper: str | None
    translate: Callable[[Tensors, torch.nn.Module], dict[str, torch.Tensor]]


def panderm(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """PanDerm: a BEiT-style transformer as a timm VisionTransformer with layer scale.

    The large file holds the encoder below `encoder.`, the base file by bare names. Queries and
    values have biases, keys have none.
    """
    del model
    found = {name.removeprefix("encoder."): tensor for name, tensor in tensors.items()}
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

    The trained final `norm` is not used by the owners' pooled feature: their `fc_norm` is no part
    of the checkpoint and starts as the identity scaling (weight 1, bias 0).
    """
    width = model.num_features
    return {**tensors, "fc_norm.weight": torch.ones(width), "fc_norm.bias": torch.zeros(width)}


def retfound_dinov2(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """RETFound (DINOv2): the teacher's backbone.

    The position embedding is brought to the model's grid as the owners do: bicubic, without
    antialiasing.
    """
    found = {
        name.removeprefix("backbone.")
        .replace("mlp.w12.", "mlp.fc1.")
        .replace("mlp.w3.", "mlp.fc2."): tensor
        for name, tensor in tensors.items()
    }
    if "pos_embed" in found and found["pos_embed"].shape != model.pos_embed.shape:
        found["pos_embed"] = resample_abs_pos_embed(
            found["pos_embed"], list(model.patch_embed.grid_size), antialias=False
        )
    return found


def biovil(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """BioViL: the image trunk, a ResNet-50 by torchvision's names."""
    del model
    return {name.removeprefix("encoder.encoder."): tensor for name, tensor in tensors.items()}


def biovil_t(tensors: Tensors, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """BioViL-T: the static half (256) of its image embedding, as a ResNet-50 with a linear head.

    The head is the 1 × 1 convolution `backbone_to_vit`, which has no bias: applied to the mean of
    the feature map it gives the mean of its own output.
    """
    width = model.num_classes
    found = biovil(tensors, model)
    if "encoder.backbone_to_vit.weight" in found:
        found["fc.weight"] = found.pop("encoder.backbone_to_vit.weight").flatten(1)
        found["fc.bias"] = torch.zeros(width)
    return found


LAYOUTS: Mapping[str, CheckpointLayout] = {
    "panderm": CheckpointLayout("model", panderm),
    "retfound_mae": CheckpointLayout("model", retfound_mae),
    "retfound_dinov2": CheckpointLayout("teacher", retfound_dinov2),
    "biovil": CheckpointLayout(None, biovil),
    "biovil_t": CheckpointLayout(None, biovil_t),
}
