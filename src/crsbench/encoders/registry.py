"""From a registry entry to a loaded encoder."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.encoders.base import Encoder, LoadedEncoder
from crsbench.encoders.base_model_check import BaseModelCheck, check_trained, compare
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.weights.files import base_model_of, stage, with_file

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
    trained = check_trained(entry, encode) if entry.has_weights else None
    base_model = _compare_with_base_model(entry, encode, home, weights_root)
    return LoadedEncoder(entry.name, encode, preprocessing, digest, base_model, trained)


def _check_size(entry: EncoderEntry, encode: Encoder) -> None:
    """The loaded model must be as wide and as deep as its entry says."""
    for key, attribute in (("width", "width"), ("blocks", "block_count")):
        if key not in entry.spec:
            continue
        try:
            found = getattr(encode, attribute)
        except (AttributeError, ValueError):
            found = "none that it states"
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


def _compare_with_base_model(
    entry: EncoderEntry, encode: Encoder, home: Path, weights_root: Path
) -> BaseModelCheck | None:
    """How the loaded weights compare with the general model that a faulty load would leave.

    They are compared when the base model's weights are available, which are not downloaded here.
    Raises UserError when they are equal, unless the entry says that this is to be marked only.
    """
    general = base_model_of(entry)
    if general is None:
        return None
    if_equal = entry.spec["base_model"].get("if_equal", "stop")
    try:
        stage(general, weights_root, download=False)
    except UserError:
        return BaseModelCheck(general.name, "not compared", if_equal)
    other, _ = _load(with_file(general, weights_root), home, weights_root, torch.device("cpu"))
    check = compare(encode.state_dict(), other.state_dict(), general.name, if_equal)
    if check.verdict == "equal" and if_equal == "stop":
        raise UserError(
            f"Encoder '{entry.name}': its weights are those of {check.title}, the general model "
            f"that a faulty load leaves: all of {check.tensors} tensors are equal; where that is "
            "known and wanted, `base_model.if_equal: mark` in its entry lets it pass."
        )
    return check
