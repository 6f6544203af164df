"""Where the files lie that a run starts from: data sets, what encoders are made of."""

from __future__ import annotations

from pathlib import Path

from crsbench.config.layout import Layout
from crsbench.config.model import Config


def image_root(config: Config, dataset: str) -> Path:
    """The folder that a data set's tables and images lie in."""
    entry = config.dataset(dataset)
    if entry.synthetic:
        return Path(Layout.at(Layout(config.results).phantoms, dataset=dataset)).parent
    return config.data_root / entry.spec.get("root", "")


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
