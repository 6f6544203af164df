"""Weights as tensors: reading, strict loading, freezing, the digest that identifies what ran."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.weights.files import INDEX, beside, fetch
from crsbench.weights.index import shard_of_tensor


def freeze(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    for parameter in model.parameters():  # one by one: a TorchScript module has no requires_grad_
        parameter.requires_grad_(False)
    with suppress(NotImplementedError):  # a program of torch.export has no modes
        model.eval()
    return model.to(device)


def sha256_of_tensors(tensors: Mapping[str, torch.Tensor], salt: str = "") -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256(salt.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy())
    return digest.hexdigest()


def fetch_tensors(
    entry: EncoderEntry,
    weights_root: Path,
    *,
    prefixes: Sequence[str] = ("",),
    wrapper: str | None = None,
    ignored_tensors: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """The tensors of an encoder's weights, read without executing anything that the file holds.

    The weights file is a safetensors file, the index of safetensors shards (only the shards that
    hold a wanted tensor are fetched and read), or a torch checkpoint, whose tensors stand under the
    key `wrapper` if it has it. Only the tensors below a prefix are wanted, by their names without
    it; of several prefixes the first that occurs counts. How the names of all others begin must be
    said in `ignored_tensors`, or by the entry's key of that name.
    """
    file = fetch(entry, weights_root)
    try:
        names, read = _opened(entry, weights_root, file, wrapper)
        prefix = next((p for p in prefixes if any(n.startswith(p) for n in names)), None)
        if prefix is None:
            raise UserError(
                f"Encoder '{entry.name}': {file} holds no tensor below "
                f"{' or '.join(repr(p) for p in prefixes)}; it holds '{min(names, default='')}' …"
            )
        known = (*ignored_tensors, *entry.spec.get("ignored_tensors", ()))
        rest = [name for name in names if name.startswith(known) or not name.startswith(prefix)]
        _check_rest(entry, file, [name for name in rest if not name.startswith(known)])
        tensors = read(set(names) - set(rest))
    except UserError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"Encoder '{entry.name}': {file} is no readable checkpoint ({reason})."
        ) from error
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _check_rest(entry: EncoderEntry, file: Path, unknown: Sequence[str]) -> None:
    if unknown:
        starts = dict.fromkeys(".".join(name.split(".")[:2]) for name in sorted(unknown))
        shown = ", ".join(list(starts)[:5]) + (" …" if len(starts) > 5 else "")
        raise UserError(
            f"Encoder '{entry.name}': {file} holds {len(unknown)} tensors beside the image tower "
            f"that `ignored_tensors` of its entry does not name: {shown}; how their names "
            "begin belongs there, if the tower has no use for them."
        )


Read = Callable[[Set[str]], dict[str, torch.Tensor]]


def _opened(
    entry: EncoderEntry, weights_root: Path, file: Path, wrapper: str | None
) -> tuple[list[str], Read]:
    """The names of all tensors of a weights file, and what reads some of them."""
    if file.name.endswith(INDEX):
        shards = shard_of_tensor(file)

        def read(wanted: Set[str]) -> dict[str, torch.Tensor]:
            parts = sorted({shards[name] for name in wanted})
            files = [fetch(entry, weights_root, beside(entry, part)) for part in parts]
            return {n: t for part in files for n, t in _read_safetensors(part, wanted).items()}

        return list(shards), read
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as content:
            return list(content.keys()), lambda wanted: _read_safetensors(file, wanted)
    tensors = _read_torch(file, entry.name, wrapper)
    return list(tensors), lambda wanted: {n: t for n, t in tensors.items() if n in wanted}


def _read_safetensors(file: Path, wanted: Set[str]) -> dict[str, torch.Tensor]:
    with safe_open(file, framework="pt") as content:
        names = [name for name in content.keys() if name in wanted]  # noqa: SIM118 - no mapping
        return {name: content.get_tensor(name) for name in names}


def _read_torch(file: Path, encoder: str, wrapper: str | None) -> dict[str, torch.Tensor]:
    # Training scripts put their arguments beside the tensors: a Namespace executes nothing.
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping) and wrapper in content:
        content = content[wrapper]
    if not isinstance(content, Mapping):
        raise UserError(f"Encoder '{encoder}': {file} holds more than a mapping of tensors.")
    other = [name for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if other:
        raise UserError(
            f"Encoder '{encoder}': {file} holds more than a mapping of tensors: '{other[0]}'."
        )
    return dict(content)


def load_strictly(
    model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], encoder: str
) -> None:
    """Load tensors by name; a missing, unexpected or unlike one is a UserError naming it."""
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    unlike = sorted(n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape)
    shapes = {name: (tensors[name].shape, own[name].shape) for name in unlike}
    faults = faults_of_weights(missing, unexpected, shapes)
    if faults:
        raise UserError(f"Encoder '{encoder}': its weights {'; they '.join(faults)}.")
    model.load_state_dict(dict(tensors), strict=True)


def faults_of_weights(
    missing: Iterable[str],
    unexpected: Iterable[str],
    unlike: Mapping[str, tuple[Sequence[int], Sequence[int]]],
) -> list[str]:
    """What is wrong with a checkpoint, in words; empty if nothing is.

    unlike: by name the shape of the checkpoint's tensor and that of the model's.
    """
    return [
        *_listed("lack", sorted(missing)),
        *_listed("hold the unexpected", sorted(unexpected)),
        *(
            f"hold {name} of shape {tuple(theirs)} for one of {tuple(own)}"
            for name, (theirs, own) in sorted(unlike.items())[:3]
        ),
    ]


def _listed(what: str, names: Sequence[str]) -> Iterable[str]:
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        yield f"{what} {', '.join(names[:5])}{more}"


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


def read_json(file: Path, encoder: str) -> dict[str, Any]:
    """A model's configuration file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"Encoder '{encoder}': {file} is not valid JSON: {error}.") from error
