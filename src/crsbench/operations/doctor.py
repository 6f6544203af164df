"""The doctor: what a run needs, and whether it is there, before any hour is spent on it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from crsbench.config.grid import Grid
from crsbench.config.layout import Layout
from crsbench.config.model import Config, DatasetEntry, EncoderEntry
from crsbench.config.overlap import overlap
from crsbench.config.sources import image_root
from crsbench.core.errors import UserError
from crsbench.core.names import CLEAN
from crsbench.data.readers import read_images
from crsbench.features.embeddings import embedding_files
from crsbench.features.store import read_metadata
from crsbench.weights.files import Digests, base_model_of, hub_named, pins, stage, with_file

Light = Literal["green", "yellow", "red"]

ENCODERS = "Encoders (a question mark: whether pre-training had these images is not known)"

LOOKED_FOR = 1000
"""How many of a data set's image files are looked for, spread evenly over its ids."""

USUAL_WIDTH = 1024
"""The feature width that the estimate of disk space supposes, that of a ViT-L."""

SHARED_MEMORY = 16 * 2**20
"""Bytes of /dev/shm that the extraction's worker processes need for their locks, generously."""


@dataclass(frozen=True)
class Row:
    """One thing that a run needs.

    light: `green` for there, `yellow` for worth a look, `red` for missing: `all` can't end without
    it. cells: the row of the table by its headings; advice: the sentence that says what to do.
    """

    light: Light
    cells: Mapping[str, str]
    advice: str = ""


Report = Mapping[str, Sequence[Row]]


def examine(config: Config) -> Report:
    """Examine all that a configuration's run needs: rows by the title of their table."""
    entries = {**config.datasets, **config.targets}
    images = {name: find_images(config, entry) for name, entry in entries.items()}
    extraction = config.settings["extraction"]
    return {
        ENCODERS: [encoder_row(config, entry) for entry in config.encoders.values()],
        "Data sets": [dataset_row(entry, images[name]) for name, entry in entries.items()],
        "Machine": [
            disk_row(config, images),
            shared_memory_row(extraction["workers"]),
            *([cuda_row()] if extraction["device"] == "cuda" else []),
        ],
    }


def formatted(report: Report) -> str:
    """The report as plain text: a table for each of its parts, the advice below it."""
    return "\n\n".join(_table(title, rows) for title, rows in report.items())


def missing(report: Report) -> list[str]:
    """The first cell of every red row: what the run can't do without."""
    rows = [row for part in report.values() for row in part]
    return [next(iter(row.cells.values())) for row in rows if row.light == "red"]


def _table(title: str, rows: Sequence[Row]) -> str:
    lines = [["", *rows[0].cells], *([row.light, *row.cells.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    advice = [f"  {row.light}: {row.advice}" for row in rows if row.advice]
    return "\n".join([title, *shown, *advice])


# --- Encoders ---


def encoder_row(config: Config, entry: EncoderEntry) -> Row:
    """Whether an encoder's library and weights, module or embeddings are there."""
    cells = {
        "encoder": entry.name,
        "weights": "missing",
        "from": _origin(entry),
        "licence": entry.spec["licence"],
        "gated": "yes" if entry.spec.get("gated") else "no",
        "SHA-256": "-",
        "pinned": "-",
        "its general model": _base_model(config, entry),
        "pre-training had": _overlap(config, entry),
    }
    try:
        if not entry.has_weights:
            return Row("green", {**cells, "weights": _find_encoder(config, entry)})
        files = _find_weights(config, entry)
    except UserError as error:
        return Row("red", cells, str(error))
    digests = Digests(Layout(config.results).digests).of(files)
    pinned, advice = _pinned(with_file(entry, config.weights_root), digests)
    shown = {
        "weights": f"found ({_bytes(sum(file.stat().st_size for file in files))})",
        "SHA-256": f"{digests[files[0].name][:12]}…",
        "pinned": pinned,
    }
    warning = _base_model_warning(config, entry, cells["its general model"])
    light = "yellow" if warning else "green"
    return Row(light, {**cells, **shown}, " ".join(filter(None, [warning, advice])))


def _base_model(config: Config, entry: EncoderEntry) -> str:
    """How the encoder's weights compared with its base model's when features were made."""
    if "base_model" not in entry.spec:
        return "-"
    layout = Layout(config.results)
    for dataset in config.datasets:
        names = {"encoder": entry.name, "dataset": dataset, "condition": CLEAN}
        file = Path(layout.at(layout.features, **names))
        if file.is_file():
            return read_metadata(file)["base_model"]["verdict"]
    return "not yet compared"


def _base_model_warning(config: Config, entry: EncoderEntry, verdict: str) -> str:
    general = base_model_of(entry)
    if general is None or verdict == "differs":
        return ""
    if verdict == "equal":
        return (
            f"The encoder '{entry.name}' is {general.name}: its weights are equal to that model's."
        )
    try:
        stage(general, config.weights_root, download=False)
    except UserError:
        return (
            f"The encoder '{entry.name}' can't be compared with {general.name}, which is not "
            "available: `snakemake --cores 1 stage` fetches it."
        )
    if verdict == "not compared":
        return (
            f"The encoder '{entry.name}' was not compared with {general.name}, which is available "
            "now: its next extraction does (`--forcerun features`)."
        )
    return ""


def _origin(entry: EncoderEntry) -> str:
    """Where an encoder's weights come from, in a few words."""
    weights = entry.spec.get("weights")
    if weights == "hub":
        return "timm's own hub repository"
    if not isinstance(weights, Mapping):
        return "-"
    if "hub" in weights:
        return f"hub {weights['hub']} at {weights.get('revision') or 'main'}"
    if "package" in weights:
        return f"package {weights['package']}"
    return weights.get("source") or f"{weights.get('file') or weights['folder']}"


def _pinned(entry: EncoderEntry, digests: Mapping[str, str]) -> tuple[str, str]:
    """Whether the entry pins every file that was found, and else the line that would."""
    if entry.spec["weights"] == "hub":
        named = hub_named(entry).spec["weights"]
        line = ", ".join(f"{key}: {value}" for key, value in named.items())
        digest = next(iter(digests.values()))
        return "no", (
            f"The encoder '{entry.name}': pin what you have, "
            f"`weights: {{{line}, sha256: {digest}}}`."
        )
    known = pins(entry)
    kinds = {kind for name in digests for kind in known.get(name, {"nothing": ""})}
    if kinds == {"sha256"}:
        return "yes", ""
    by_name = ", ".join(f"{name}: {digest}" for name, digest in digests.items())
    line = f"{{{by_name}}}" if len(digests) > 1 else next(iter(digests.values()))
    advice = f"The encoder '{entry.name}': pin what you have in its weights, `sha256: {line}`."
    return "by MD5" if kinds == {"md5"} else "partly" if known else "no", advice


def _find_weights(config: Config, entry: EncoderEntry) -> list[Path]:
    """All files that are read, the weights first; raises UserError saying what is missing."""
    _find_library(entry)
    return stage(entry, config.weights_root, download=False)


def _find_library(entry: EncoderEntry) -> None:
    library = entry.spec["library"]
    if importlib.util.find_spec(library) is None:
        raise UserError(
            f"The encoder '{entry.name}' needs the library {library}, which is not installed."
        )


def _find_encoder(config: Config, entry: EncoderEntry) -> str:
    """What was found of one without weights, in words; raises UserError saying what is missing."""
    library = entry.spec.get("library")
    if library is None:
        raise UserError(
            f"The encoder '{entry.name}' can be planned but not run: its entry names no library."
        )
    if library == "embeddings":
        return _find_embeddings(config, entry)
    if library == "python":
        return _find_module(config.home, entry)
    _find_library(entry)
    return "none (untrained)"


def _find_embeddings(config: Config, entry: EncoderEntry) -> str:
    cells = [cell for cell in Grid(config).cells if cell.encoder == entry.name]
    wanted = [
        file
        for cell in cells
        for file in embedding_files(
            entry, config.weights_root, cell.dataset, Grid(config).conditions(cell.dataset)
        ).values()
    ]
    absent = [file for file in wanted if not file.is_file()]
    if absent:
        raise UserError(
            f"The encoder '{entry.name}': {len(absent)} of its {len(wanted)} files of embeddings "
            f"are missing, the first is {absent[0]}."
        )
    return f"{len(wanted)} files of embeddings"


def _find_module(home: Path, entry: EncoderEntry) -> str:
    """Find an own encoder's module as the import would, without running it."""
    name = entry.spec["model"].partition(":")[0]
    path: Sequence[str] | None = [str(home), *sys.path]
    for part in name.split("."):
        place = None if path is None else PathFinder.find_spec(part, path)
        if place is None:
            raise UserError(f"The encoder '{entry.name}': there is no Python module '{name}'.")
        path = place.submodule_search_locations
    return f"module {name}"


def _overlap(config: Config, entry: EncoderEntry) -> str:
    """The data sets whose images pre-training is known to have had; `?` marks the unknown ones."""
    found = {
        name: overlap(entry.spec, name, dataset.spec).included
        for name, dataset in {**config.datasets, **config.targets}.items()
    }
    yes = [name for name, included in found.items() if included == "yes"]
    unknown = [f"{name}?" for name, included in found.items() if included == "unknown"]
    return ", ".join([*yes, *unknown]) or "none"


# --- Data sets ---


@dataclass(frozen=True)
class Images:
    """What was found of a data set's images.

    count: as its tables list them, None when they can't be read; by_split: the count by the
    publisher's split; fault: the sentence that says what is wrong, "" for nothing.
    """

    folder: str
    count: int | None = None
    by_split: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""


def find_images(config: Config, entry: DatasetEntry) -> Images:
    """Read a data set's tables and look for a sample of the images that they list."""
    if entry.synthetic:
        return Images("drawn by the workflow", entry.spec["phantom"]["count"])
    root = image_root(config, entry.name)
    try:
        frame = read_images(entry, root).frame
    except UserError as error:
        return Images(str(root), fault=str(error))
    splits = frame["publisher_split"] if "publisher_split" in frame else pd.Series(dtype=str)
    counts = {str(name): int(count) for name, count in splits.value_counts().items()}
    absent = "" if entry.without_images else _first_absent(root, frame["path"])
    return Images(str(root), len(frame), counts, absent)


def _first_absent(root: Path, paths: pd.Series) -> str:
    at = np.unique(np.linspace(0, len(paths) - 1, LOOKED_FOR).round().astype(int))
    absent = [path for path in paths.iloc[at] if not (root / path).is_file()]
    if not absent:
        return ""
    return (
        f"{len(absent)} of {len(at)} images that were looked for are missing, the first is "
        f"{root / absent[0]}."
    )


def dataset_row(entry: DatasetEntry, images: Images) -> Row:
    """Whether a data set's folder, tables and images are there, and as many as expected."""
    expected = entry.spec.get("expected_images")
    cells = {
        "data set": entry.name,
        "reader": entry.spec.get("reader", "-"),
        "images": "?" if images.count is None else f"{images.count:,}",
        "expected": _counts(expected) if expected else "-",
        "licence": entry.spec["licence"],
        "folder": images.folder or "-",
    }
    if entry.without_images and images.count is not None:
        cells["images"] += " (labels only)"
    if images.fault:
        quarantined = images.count and entry.spec.get("damaged_images") == "quarantine"
        advice = f"The data set '{entry.name}': {images.fault}"
        return Row("yellow" if quarantined else "red", cells, advice)
    found = images.by_split if isinstance(expected, Mapping) else images.count
    if expected and found != expected:
        advice = (
            f"The data set '{entry.name}' has {_counts(found)} images; its publisher's release has "
            f"{_counts(expected)}."
        )
        return Row("yellow", cells, advice)
    return Row("green", cells)


def _counts(counts: int | Mapping[str, int] | None) -> str:
    if isinstance(counts, Mapping):
        return " + ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    return f"{counts:,}"


# --- The machine ---


def disk_row(config: Config, images: Mapping[str, Images]) -> Row:
    """Free space of the results folder against an estimate of what the features take."""
    folder = config.results.absolute()
    while not folder.is_dir():
        folder = folder.parent
    free, needed = shutil.disk_usage(folder).free, _feature_bytes(config, images)
    cells = {
        "machine": "results",
        "found": f"{_bytes(free)} free in {config.results}",
        "needed": f"about {_bytes(needed)} of features" if needed else "?",
    }
    if not os.access(folder, os.W_OK):
        return Row("red", cells, f"The folder {folder} can't be written to.")
    if free < needed:
        advice = f"The features may not fit: {_bytes(needed)} at a width of {USUAL_WIDTH:,}."
        return Row("yellow", cells, advice)
    return Row("green", cells)


def _feature_bytes(config: Config, images: Mapping[str, Images]) -> int:
    """Float32 features of every cell at the usual width; unread data sets count for nothing."""
    grid = Grid(config)
    rows = 0.0
    for cell in grid.cells:
        count = images[cell.dataset].count or 0
        rows += count * (1 + len(grid.degraded) * config.settings["splits"]["test"])
        rows += sum(images[name].count or 0 for name in config.datasets[cell.dataset].shift)
    return round(rows * USUAL_WIDTH * 4)


def shared_memory_row(workers: int, folder: Path = Path("/dev/shm")) -> Row:
    """Free space of /dev/shm, where the extraction's worker processes keep their locks."""
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    cells = {
        "machine": str(folder),
        "found": f"{_bytes(free)} free",
        "needed": f"{_bytes(SHARED_MEMORY)} for {workers} workers" if workers else "nothing",
    }
    if workers and free < SHARED_MEMORY:
        return Row("yellow", cells, f"{folder} is small; set extraction.workers: 0 or enlarge it.")
    return Row("green", cells)


def cuda_row() -> Row:
    """The CUDA device that `extraction.device: cuda` asks for."""
    import torch  # here: it takes seconds, and a run on the CPU may not need it

    cells = {"machine": "CUDA", "found": "none", "needed": "a device"}
    if not torch.cuda.is_available():
        advice = "extraction.device is cuda, but torch finds no CUDA device; allowed: cpu."
        return Row("red", cells, advice)
    return Row("green", {**cells, "found": torch.cuda.get_device_name()})


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
