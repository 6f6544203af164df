"""Weights: strict loading, freezing, and the digest that identifies what ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from crsbench.errors import UserError


def freeze(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    return model.to(device).eval().requires_grad_(False)


def sha256_of_tensors(tensors: Mapping[str, torch.Tensor], salt: str = "") -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256(salt.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy())
    return digest.hexdigest()


def read_tensors(file: Path, encoder: str) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, read without executing anything that it holds."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"Encoder '{encoder}': {file} is no readable checkpoint ({reason})."
        ) from error
    if not isinstance(content, Mapping) or not all(
        isinstance(tensor, torch.Tensor) for tensor in content.values()
    ):
        raise UserError(f"Encoder '{encoder}': {file} holds more than a mapping of tensors.")
    return dict(content)


def load_in_order(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Load tensors into a model whose tensors have other names but the same order.

    Every pair must agree in shape and in the last part of its name (weight, running_mean, …);
    a missing, surplus or unlike tensor is an error.
    """
    own = model.state_dict()
    if len(own) != len(tensors):
        raise UserError(f"{source} holds {len(tensors)} tensors, the model has {len(own)}.")
    for (name, tensor), (theirs, value) in zip(own.items(), tensors.items(), strict=True):
        if tensor.shape != value.shape or name.split(".")[-1] != theirs.split(".")[-1]:
            raise UserError(
                f"{source}: the tensor '{theirs}' of shape {tuple(value.shape)} does not fit the "
                f"model's '{name}' of shape {tuple(tensor.shape)}."
            )
    model.load_state_dict(dict(zip(own, tensors.values(), strict=True)), strict=True)
