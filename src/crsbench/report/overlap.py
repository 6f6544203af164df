"""Whether an encoder saw a data set's images in pre-training: the mark beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd


@dataclass(frozen=True)
class Overlap:
    """included: whether pre-training had the data set's images; source: who says so, "" unknown."""

    included: Literal["yes", "no", "unknown"]
    source: str


def overlap(encoder: Mapping[str, Any], dataset: str, dataset_entry: Mapping[str, Any]) -> Overlap:
    """What is known of one encoder and one data set, from their registry entries.

    Random weights saw nothing, and nobody trained on the synthetic images; all else is unknown
    unless the encoder's entry says it under `pretraining`.
    """
    if encoder.get("weights") == "untrained":
        return Overlap("no", "untrained")
    if dataset_entry.get("reader") == "phantom":
        return Overlap("no", "synthetic images")
    known = encoder.get("pretraining", {}).get(dataset)
    if known is None:
        return Overlap("unknown", "")
    return Overlap("yes" if known["included"] else "no", known["source"])


def overlap_table(
    encoders: Mapping[str, Mapping[str, Any]],
    datasets: Mapping[str, Mapping[str, Any]],
    targets: Mapping[str, Mapping[str, Any]],
) -> pd.DataFrame:
    """A row for each cell of the panel and for each shift target of the cell's data set.

    Columns: encoder, dataset, images (the data set itself or one of its targets), included (yes,
    no, unknown), source. All arguments are registry entries by their names.
    """
    rows = []
    for encoder, spec in encoders.items():
        for dataset, entry in datasets.items():
            if dataset in spec.get("without_datasets", ()):
                continue
            for images in (dataset, *entry.get("shift", ())):
                found = overlap(spec, images, entry if images == dataset else targets[images])
                rows.append((encoder, dataset, images, found.included, found.source))
    return pd.DataFrame(rows, columns=["encoder", "dataset", "images", "included", "source"])
