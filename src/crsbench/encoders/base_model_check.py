"""What a loaded model might silently be: the general model it came from, or an untrained one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError

Verdict = Literal["equal", "differs", "not compared"]

# What a file may have been stored in; the model has float32.
_STORED_AS = (torch.float32, torch.float16, torch.bfloat16)

# Tables of positions: each library brings them to another grid in another way.
_POSITIONS = ("pos_embed", "position", "positional_embedding")


@dataclass(frozen=True)
class BaseModelCheck:
    """How an encoder's weights compare with those of the general model that it was trained from.

    tensors: how many were compared, `differing` of them are not the base model's, by up to
    `difference` of the largest value of the base model's tensor; None where nothing was compared.
    if_equal: whether the registry lets an encoder pass whose weights are the base model's.
    """

    title: str
    verdict: Verdict
    if_equal: Literal["stop", "mark"]
    tensors: int = 0
    differing: int = 0
    difference: float | None = None

    def __str__(self) -> str:
        if self.verdict == "not compared":
            return f"not compared: the weights of {self.title} are not available"
        if self.verdict == "equal":
            return f"equal: all of its {self.tensors} tensors are those of {self.title}"
        return (
            f"differs from {self.title} in {self.differing} of {self.tensors} tensors, by up to "
            f"{self.difference:.2g} of a tensor's largest value"
        )


def compare(
    own: Mapping[str, torch.Tensor],
    base_models: Mapping[str, torch.Tensor],
    title: str,
    if_equal: Literal["stop", "mark"],
) -> BaseModelCheck:
    """Compare two models of one architecture, tensor by tensor.

    Equal are tensors with the same values, or with the same once one of them is rounded to what
    the other was stored in (float16 or bfloat16): the same weights are handed out in several types.
    Tables of positions don't count: they are resampled on loading, not everywhere alike.
    """
    names = [name for name in own if not any(part in name for part in _POSITIONS)]
    differences = [_difference(own[name].cpu(), base_models[name].cpu()) for name in names]
    differing = [share for share in differences if share > 0]
    if not differing:
        return BaseModelCheck(title, "equal", if_equal, len(names), 0, 0.0)
    return BaseModelCheck(title, "differs", if_equal, len(names), len(differing), max(differing))


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """0 for equal tensors, else the largest difference as a share of the other's largest value."""
    if torch.equal(one, other):
        return 0.0
    largest = float((one - other).abs().max())
    scale = float(other.abs().max())
    # A value is rounded by at most 2^-8 of itself, so most tensors that differ need no second look.
    if largest <= scale * 2**-8 and any(_rounds_to(one, other, kind) for kind in _STORED_AS):
        return 0.0
    return largest / scale if scale else float("inf")


def _rounds_to(one: torch.Tensor, other: torch.Tensor, kind: torch.dtype) -> bool:
    rounded = one.to(kind).to(one.dtype), other.to(kind).to(other.dtype)
    return torch.equal(rounded[0], other) or torch.equal(one, rounded[1])


def check_trained(entry: EncoderEntry, model: torch.nn.Module) -> str:
    """How many norm layers are as a library creates them, in words, for the metadata.

    Strict loading proves that every tensor came from the file, not that the file was ever trained.
    Training moves the scales and offsets of norms, which begin at one constant each in every
    library. Raises UserError when none has moved, unless the encoder is a floor.
    """
    norms = [
        module
        for module in model.modules()
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None
    ]
    initial = sum(_as_created(norm) for norm in norms)
    if norms and initial == len(norms) and not entry.is_floor:
        raise UserError(
            f"Encoder '{entry.name}': its weights are those of an untrained model: the scales and "
            f"offsets of all {initial} norm layers are as created; a floor that is meant to be "
            "untrained has the group floor."
        )
    return f"{initial} of {len(norms)} norm layers are as created"


def _as_created(norm: torch.nn.Module) -> bool:
    """Whether scale and offset, which frozen norms keep as buffers, are of one value each."""
    tensors = [norm.weight, getattr(norm, "bias", None)]
    return all(bool((x == x.flatten()[0]).all()) for x in tensors if x is not None)
