"""From a registry entry to a loaded encoder."""

from __future__ import annotations

from pathlib import Path

import torch

from crsbench.config import EncoderEntry
from crsbench.encoders import python_encoder, timm_encoder
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.errors import UserError

_LOADERS = {"timm": timm_encoder.load, "python": python_encoder.load}


def load_encoder(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> LoadedEncoder:
    """Load an encoder by its entry, frozen, in evaluation mode, on `device`.

    home: the folder that own Python encoders are imported from; weights_root: the folder that
    weight files are relative to. Raises UserError naming the encoder when it can't be loaded
    whole.
    """
    library = entry.spec.get("library")
    if library is None:
        raise UserError(
            f"The encoder '{entry.name}' can be planned but not run: its registry entry names no "
            f"library (allowed: {', '.join(_LOADERS)})."
        )
    encode, digest = _LOADERS[library](entry, home, weights_root, device)
    preprocessing = Preprocessing.from_spec(entry.spec["preprocessing"])
    return LoadedEncoder(entry.name, encode, preprocessing, digest)
