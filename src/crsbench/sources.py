"""Where the files lie that a run starts from: image tables, image roots, weights."""

from __future__ import annotations

from pathlib import Path

from crsbench.config import Config
from crsbench.errors import UserError
from crsbench.grid import Layout


def image_table(config: Config, layout: Layout, dataset: str) -> Path:
    """The table that a data set is read from; its folder is the image root.

    Raises UserError for a data set that this release has no reader for.
    """
    spec = config.dataset(dataset).spec
    match spec.get("reader"):
        case "phantom":
            return Path(layout.at(layout.phantoms, dataset=dataset))
        case "table":
            return config.data_root / spec["root"] / spec["table"]
    raise UserError(
        f"The data set '{dataset}' can be planned but not run: its registry entry names no reader "
        "(allowed: table, phantom)."
    )


def encoder_files(config: Config, encoder: str) -> list[Path]:
    """The local files that an encoder's features depend on: its weights or its own Python file."""
    spec = config.encoders[encoder].spec
    weights = spec.get("weights")
    if isinstance(weights, dict) and "package" not in weights:
        return [config.weights_root / weights["file"]]
    if spec.get("library") == "python":
        return [config.home / (spec["model"].split(":")[0].replace(".", "/") + ".py")]
    return []
