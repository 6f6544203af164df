"""Where the files lie that a run starts from: data sets, what encoders are made of."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.data.readers import READERS


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


def encoder_inputs(config: Config, layout: Layout, name: str) -> list[Path]:
    """The files that an encoder's features depend on: the record of its weights, or its own code.

    Own embeddings are files by condition, and not among them.
    """
    entry = config.encoders[name]
    if entry.has_weights:
        return [Path(layout.at(layout.weights, encoder=name))]
    if entry.spec.get("library") == "python":
        own = config.home / (entry.spec["model"].split(":")[0].replace(".", "/") + ".py")
        return [own] if own.is_file() else []
    return []
