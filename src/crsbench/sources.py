"""Where the files lie that a run starts from: data sets, weights."""

from __future__ import annotations

from pathlib import Path

from crsbench.config import Config
from crsbench.data.readers import READERS
from crsbench.errors import UserError
from crsbench.grid import Layout
from crsbench.shards import shards_of


def image_root(config: Config, layout: Layout, dataset: str) -> Path:
    """The folder that a data set's tables and images lie in.

    Raises UserError for a data set whose registry entry names no reader.
    """
    entry = config.dataset(dataset)
    if entry.synthetic:
        return Path(layout.at(layout.phantoms, dataset=dataset)).parent
    if "reader" not in entry.spec:
        raise UserError(
            f"The data set '{dataset}' can be planned but not run: its registry entry names no "
            f"reader (allowed: {', '.join(READERS)})."
        )
    return config.data_root / entry.spec["root"]


def encoder_files(config: Config, encoder: str) -> list[Path]:
    """The local files that an encoder's features depend on: its weights or its own Python file.

    Weights in shards are the index, its shards (as far as the index is there to name them) and, as
    for every model that brings its own, the configuration beside them.
    """
    entry = config.encoders[encoder]
    spec = entry.spec
    weights = spec.get("weights")
    if isinstance(weights, dict) and "file" in weights and not weights.keys() & {"package", "hub"}:
        file = config.weights_root / weights["file"]
        beside = [] if entry.configuration_file is None else [entry.configuration_file]
        if file.name.endswith(".index.json") and file.is_file():
            beside += shards_of(file, entry.prefixes)
        return [file, *(file.parent / name for name in beside)]
    if spec.get("library") == "python":
        return [config.home / (spec["model"].split(":")[0].replace(".", "/") + ".py")]
    return []
