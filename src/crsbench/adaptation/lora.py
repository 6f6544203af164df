"""Low-rank updates in an encoder: where they go, how they are saved, that nothing else changes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, inject_adapter_in_model
from peft.tuners.lora.layer import MultiheadAttention
from safetensors.torch import save
from transformers.modeling_layers import GradientCheckpointingLayer

from crsbench.core.errors import UserError
from crsbench.core.files import atomic_write
from crsbench.encoders import Encoder
from crsbench.weights.tensors import sha256_of_tensors

ATTENTION = (
    r"(.*\.)?(blocks\.\d+\.attn\.(qkv|proj)"  # timm: fused queries, keys and values
    r"|layers?\.\d+\.(self_attn|attention)\.([qkvo]|out)_proj"  # transformers
    r"|resblocks\.\d+\.attn)"  # open_clip: torch's own attention, its in_proj and out_proj
)
"""The attention projections of the blocks, by the names that the libraries give them."""

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""peft's own file names."""

_PREFIX = "base_model.model."  # what peft's own class puts before the names of its model
_OUT_PROJ = "base_layer.out_proj.lora_B.weight"
_TIMES_ADDED = 2
"""How often peft 0.21 adds the update of the out_proj of torch's attention to its weight.

Its factor is divided by this where it is written, so that a model loaded by peft computes what was
trained; a test compares both.
"""


class AttentionLora(MultiheadAttention):
    """torch's attention with updates of its projections.

    peft's own class adds the update to the weight before each pass and subtracts it afterwards,
    which leaves other weights behind by rounding; here the weight is not touched.
    """

    def forward(self, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        (name,) = self.active_adapters
        base = self.get_base_layer()
        out = base.out_proj
        weights = {
            "in_proj_weight": base.in_proj_weight + self.get_delta_weight(name),
            "out_proj.base_layer.weight": out.weight + out.get_delta_weight(name),
        }
        return torch.func.functional_call(base, weights, (query, *args), kwargs)


def backbone_of(encode: Encoder, name: str) -> tuple[torch.nn.Module, str | None]:
    """The library's own model in an encoder and the attribute that holds it.

    None where the encoder is the model. Raises UserError for an encoder that is no torch module.
    """
    if not isinstance(encode, torch.nn.Module):
        raise UserError(
            f"The encoder '{name}' of adaptation is no torch module: it has no weights to adapt."
        )
    for attribute in ("model", "tower"):
        if attribute in dict(encode.named_children()):
            return getattr(encode, attribute), attribute
    return encode, None


def default_targets(backbone: torch.nn.Module) -> str:
    """Names of the modules to adapt, as a pattern of whole names.

    The attention projections of the blocks; of a network without attention its convolutions that
    mix channels (so no depthwise ones), but for the first.
    """
    if any(re.fullmatch(ATTENTION, name) for name, _ in backbone.named_modules()):
        return ATTENTION
    convolutions = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, torch.nn.Conv2d) and module.groups == 1
    ]
    return "|".join(re.escape(name) for name in convolutions[1:])


def add_lora(
    encode: Encoder, name: str, *, rank: int, alpha: int, targets: str | None, seed: int
) -> LoraConfig:
    """Put low-rank updates into a frozen encoder, in place; its features stay what they are.

    targets: a pattern of whole module names of the library's own model, or None for the default;
    seed: of the first factors (the second ones are zeros). Raises UserError naming the encoder if
    no module has such a name or none of those can be adapted.
    """
    backbone, _ = backbone_of(encode, name)
    pattern = default_targets(backbone) if targets is None else targets
    names = [module for module, _ in backbone.named_modules() if module]
    if not any(re.fullmatch(pattern, module) for module in names):
        raise UserError(
            f"adaptation.target_modules: no module of the encoder '{name}' is called '{pattern}'; "
            f"it has, for instance, {', '.join(f'`{n}`' for n in _examples(backbone))}."
        )
    for module in backbone.modules():
        if hasattr(module, "qkv_bias_separate"):  # else timm's BEiT passes by the module's forward
            module.qkv_bias_separate = True
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=pattern)
    config._register_custom_module({torch.nn.MultiheadAttention: AttentionLora})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        try:
            inject_adapter_in_model(config, backbone)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"adaptation.target_modules: '{pattern}' names modules of the encoder '{name}' "
                f"that LoRA can't adapt: {reason}"
            ) from error
    return config


def _examples(backbone: torch.nn.Module) -> list[str]:
    kinds = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.MultiheadAttention)
    found = [name for name, module in backbone.named_modules() if isinstance(module, kinds)]
    return found[-3:] or ["none that could be adapted"]


def lora_parameters(encode: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters of an encoder by name: those of its updates."""
    return {n: p for n, p in encode.named_parameters() if p.requires_grad}


def frozen_digest(encode: torch.nn.Module) -> str:
    """SHA-256 of all that must not change: every parameter and buffer but the updates'."""
    tensors = {n: t for n, t in encode.state_dict().items() if ".lora_" not in f".{n}"}
    return sha256_of_tensors(tensors)


def save_adapter(
    encode: Encoder, name: str, config: LoraConfig, weights_file: Path, config_file: Path
) -> None:
    """Write an encoder's updates as peft does: the same tensors give the same bytes.

    `peft.PeftModel.from_pretrained(model, folder)` loads them on the library's own model.
    """
    backbone, _ = backbone_of(encode, name)
    tensors = get_peft_model_state_dict(backbone, adapter_name="default")
    tensors = {
        _PREFIX + key: (value / _TIMES_ADDED if key.endswith(_OUT_PROJ) else value)
        .detach()
        .cpu()
        .contiguous()
        for key, value in tensors.items()
    }
    with atomic_write(weights_file) as part:
        part.write_bytes(save(tensors, metadata={"format": "pt"}))
    text = json.dumps(_plain(config), indent=2, sort_keys=True)
    with atomic_write(config_file) as part:
        part.write_text(text + "\n", encoding="utf-8")


def _plain(config: LoraConfig) -> Mapping[str, Any]:
    content = {**config.to_dict(), "inference_mode": True}
    return {key: sorted(v) if isinstance(v, set) else v for key, v in content.items()}


def load_merged(encode: Encoder, name: str, folder: Path) -> torch.nn.Module:
    """The encoder with the updates of a folder merged into its weights, by peft's own classes."""
    backbone, attribute = backbone_of(encode, name)
    for module in backbone.modules():
        if hasattr(module, "qkv_bias_separate"):
            module.qkv_bias_separate = True
    merged = PeftModel.from_pretrained(backbone, str(folder)).merge_and_unload(safe_merge=True)
    if attribute is None:
        return merged.eval()
    setattr(encode, attribute, merged)
    return encode.eval()


def checkpoint_activations(encode: Encoder, name: str) -> None:
    """Compute the blocks' activations again in the backward pass in place of keeping them.

    The encoder stays in evaluation mode. Raises UserError for a model that offers no such thing.
    """
    backbone, _ = backbone_of(encode, name)
    if hasattr(backbone, "gradient_checkpointing_enable"):
        backbone.gradient_checkpointing_enable({"use_reentrant": False})
        for module in backbone.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True  # the layer alone, not its dropout: else it has no effect
    elif hasattr(backbone, "set_grad_checkpointing"):
        backbone.set_grad_checkpointing(True)
    else:
        raise UserError(
            f"adaptation.checkpoint_activations: the model of the encoder '{name}' has no gradient "
            "checkpointing; set it to false."
        )
