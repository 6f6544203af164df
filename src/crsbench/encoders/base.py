"""What an encoder is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from crsbench.encoders.preprocessing import Preprocessing


class Encoder(Protocol):
    """A frozen encoder: any callable from images to pooled features.

    images: (n, 3, size, size) float32 on the job's device, as its preprocessing leaves them;
    returns (n, width), finite. Row i depends on image i alone.
    """

    def __call__(self, images: torch.Tensor, /) -> torch.Tensor: ...


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder ready to run; `weights_sha256` identifies what ran."""

    name: str
    encode: Encoder
    preprocessing: Preprocessing
    weights_sha256: str
