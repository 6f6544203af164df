"""What an encoder is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from crsbench.encoders.base_model_check import BaseModelCheck
from crsbench.encoders.preprocessing import Preprocessing


class Encoder(Protocol):
    """A frozen encoder: any callable from images to pooled features.

    images: (n, 3, size, size) float32 on the job's device, as its preprocessing leaves them;
    returns (n, width), finite. Row i depends on image i alone.
    """

    def __call__(self, images: torch.Tensor, /) -> torch.Tensor: ...


@runtime_checkable
class BlockEncoder(Encoder, Protocol):
    """An encoder that gives its pooled feature at several depths.

    depths: shares of the encoder's blocks (transformers) or stages (convolutional networks),
    ascending, in (0, 1]; returns one (n, width) tensor a depth, the final norm and pooling applied
    to each. The feature at depth 1 is the encoder's own.

    An encoder whose final norm can be left out at the depths below 1 says so by an attribute
    `has_final_norm` that is true, and takes the keyword `final_norm`.
    """

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], /
    ) -> Sequence[torch.Tensor]: ...


@contextmanager
def without(module: torch.nn.Module, *names: str) -> Iterator[None]:
    """Let some of a module's children do nothing for a while; those that it lacks are passed by."""
    kept = {name: getattr(module, name) for name in names if hasattr(module, name)}
    for name in kept:
        setattr(module, name, torch.nn.Identity())
    try:
        yield
    finally:
        for name, child in kept.items():
            setattr(module, name, child)


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder ready to run; `weights_sha256` identifies what ran.

    base_model: how its weights compare with those of the general model that they were trained
    from; None for an encoder whose registry entry names no such model. trained: what speaks for
    the weights of a file having been trained.
    """

    name: str
    encode: Encoder
    preprocessing: Preprocessing
    weights_sha256: str
    base_model: BaseModelCheck | None = None
    trained: str | None = None


def block_numbers(depths: Sequence[float], count: int) -> list[int]:
    """The block (1 is the first of `count`) after which each share of the depth is reached.

    Raises ValueError for depths that are not ascending in (0, 1] or that share a block.
    """
    inside = all(0 < depth <= 1 for depth in depths)
    numbers = [round(depth * count) for depth in depths] if inside else []
    if not inside or numbers != sorted(set(numbers) - {0}):
        raise ValueError(
            f"depths must be ascending, in (0, 1] and each a block of its own; got {list(depths)} "
            f"for {count} blocks."
        )
    return numbers
