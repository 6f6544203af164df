"""From a registry entry to a loaded encoder."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from crsbench.config import EncoderEntry
from crsbench.encoders.base import Encoder, LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.errors import UserError
from crsbench.weight_files import general_twin, stage, with_file

LIBRARIES = ("timm", "open_clip", "transformers", "python", "embeddings")
_DISTRIBUTIONS = {"open_clip": "open-clip-torch"}


def load_encoder(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> LoadedEncoder:
    """Load an encoder by its entry, frozen, in evaluation mode, on `device`.

    home: the folder that own Python encoders are imported from; weights_root: the folder that
    weight files are relative to. Raises UserError naming the encoder when it can't be loaded
    whole.
    """
    if "library" not in entry.spec:
        raise UserError(
            f"The encoder '{entry.name}' can be planned but not run: its registry entry names no "
            f"library (allowed: {', '.join(LIBRARIES)})."
        )
    if "embeddings" in entry.spec:
        raise UserError(f"The encoder '{entry.name}' is a set of embeddings: there is no model.")
    entry = with_file(entry, weights_root)
    preprocessing = Preprocessing.from_spec(entry.spec["preprocessing"])
    encode, digest = _load(entry, home, weights_root, device)
    _check_size(entry, encode)
    twin = _compare_with_twin(entry, encode, home, weights_root)
    return LoadedEncoder(entry.name, encode, preprocessing, digest, twin)


def _check_size(entry: EncoderEntry, encode: Encoder) -> None:
    """The loaded model must be as wide and as deep as its entry says."""
    for key, attribute in (("width", "width"), ("blocks", "block_count")):
        if key not in entry.spec:
            continue
        try:
            found = getattr(encode, attribute)
        except (AttributeError, ValueError):
            found = "none that it tells of"
        if entry.spec[key] != found:
            raise UserError(
                f"Encoder '{entry.name}': its entry says {key}: {entry.spec[key]}, the loaded "
                f"model has {found}."
            )


def _load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[Encoder, str]:
    library = entry.spec["library"]
    try:  # here, so that an encoder asks for its own library alone
        loader = importlib.import_module(f"crsbench.encoders.{library}_encoder")
    except ModuleNotFoundError as error:
        raise UserError(
            f"The encoder '{entry.name}' needs the library {library}, which is not installed "
            f"({error}); `pip install {_DISTRIBUTIONS.get(library, library)}` brings it."
        ) from error
    return loader.load(entry, home, weights_root, device)


def _compare_with_twin(
    entry: EncoderEntry, encode: Encoder, home: Path, weights_root: Path
) -> str | None:
    """How the loaded weights compare with the general model that a faulty load would leave.

    The general model is compared when its weights are at hand; they are never downloaded for it.
    """
    general = general_twin(entry)
    if general is None:
        return None
    try:
        stage(general, weights_root, download=False)
    except UserError:
        return f"not compared: the weights of {general.name} are not at hand"
    other, _ = _load(general, home, weights_root, torch.device("cpu"))
    own, theirs = encode.state_dict(), other.state_dict()
    equal = sum(torch.equal(tensor.cpu(), theirs[name]) for name, tensor in own.items())
    if equal == len(own):
        return f"equal: all of its {equal} tensors are those of {general.name}"
    return f"differs from {general.name} in {len(own) - equal} of {len(own)} tensors"
