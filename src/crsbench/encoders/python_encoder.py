"""An encoder of the user's own: a Python factory named by its import path."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import torch

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_of_file
from crsbench.encoders.base import Encoder
from crsbench.weights.tensors import freeze, sha256_of_tensors


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[Encoder, str]:
    """Call the factory `package.module:factory`, importable from `home` or installed.

    The factory takes nothing and returns an `Encoder`; a torch module is frozen and moved to the
    device. The digest covers the module's file and, for a torch module, its tensors.
    """
    del weights_root
    path = entry.spec["model"]
    module_name, _, factory_name = path.partition(":")
    if str(home) not in sys.path:
        sys.path.insert(0, str(home))
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"The encoder '{entry.name}' can't be imported from '{path}' "
            f"(package.module:factory): {error}."
        ) from error
    encode = factory()
    digest = sha256_of_file(inspect.getfile(module))
    if isinstance(encode, torch.nn.Module):
        encode = freeze(encode, device)
        digest = sha256_of_tensors(encode.state_dict(), digest)
    return encode, digest
