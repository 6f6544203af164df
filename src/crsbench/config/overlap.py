"""Whether an encoder saw a data set's images in pre-training: the mark beside its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from crsbench.core.names import AGGREGATE

OVERLAP_KEYS = ("weights", "pretraining", "without_datasets", "reader", "shift")
"""The keys of registry entries that what is known depends on."""

Included = Literal["yes", "no", "unknown"]
Entries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Overlap:
    """included: whether pre-training had the data set's images; source: who says so, "" unknown."""

    included: Included
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


class Overlaps:
    """What is known of every cell of a panel; all arguments are registry entries by their names."""

    def __init__(self, encoders: Entries, datasets: Entries, targets: Entries) -> None:
        self._targets = frozenset(targets)
        self._cells = {
            (encoder, dataset): {
                images: overlap(spec, images, entry if images == dataset else targets[images])
                for images in (dataset, *entry.get("shift", ()))
            }
            for encoder, spec in encoders.items()
            for dataset, entry in datasets.items()
            if dataset not in spec.get("without_datasets", ())
        }

    @classmethod
    def of_panel(cls, params: Any) -> Overlaps:
        """Of a job's parameters `encoders`, `datasets` and `targets`, as attributes."""
        return cls(params.encoders, params.datasets, params.targets)

    def of(
        self, encoder: str, dataset: str = AGGREGATE, images: str | None = None
    ) -> dict[str, Overlap]:
        """What is known of a cell, by the images: the data set's own and its shift targets'.

        images: of these alone. For the aggregate those of all of the encoder's data sets; empty for
        an encoder or a data set that is not of the panel.
        """
        found = {
            name: known
            for (of, on), cell in self._cells.items()
            if of == encoder and dataset in (on, AGGREGATE)
            for name, known in cell.items()
        }
        return found if images is None else {n: o for n, o in found.items() if n == images}

    def of_rows(self, rows: pd.DataFrame) -> list[dict[str, Overlap]]:
        """Of each row of a table what is known of the images that it is about.

        rows: with a column `encoder`; `dataset` where they are of one, else of the aggregate. Where
        a `condition` is a shift target the row is about the target's images, with another condition
        or none about the data set's own; without that column about all that its cell was tested on.
        """
        blank = pd.Series(None, index=rows.index, dtype=object)
        datasets = rows.get("dataset", blank.fillna(AGGREGATE))
        found: dict[tuple[str, str, str | None], dict[str, Overlap]] = {}
        keys = list(zip(rows["encoder"], datasets, rows.get("condition", blank), strict=True))
        for key in dict.fromkeys(keys):
            encoder, dataset, condition = key
            if "condition" not in rows:
                images = None
            else:
                images = condition if condition in self._targets else dataset
            found[key] = self.of(encoder, dataset, images)
        return [found[key] for key in keys]

    def add_to(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with a last column `overlap`: whether pre-training had their images.

        A table that is not of encoders on data sets stays as it is.
        """
        if not {"encoder", "dataset"} <= set(rows.columns):
            return rows
        return rows.assign(overlap=[summary(found.values()) for found in self.of_rows(rows)])

    def table(self) -> pd.DataFrame:
        """A row for each cell of the panel and for each shift target of the cell's data set.

        Columns: encoder, dataset, images (the data set itself or one of its targets), included
        (yes, no, unknown), source.
        """
        rows = [
            (*cell, images, known.included, known.source)
            for cell, found in self._cells.items()
            for images, known in found.items()
        ]
        return pd.DataFrame(rows, columns=["encoder", "dataset", "images", "included", "source"])


def summary(found: Iterable[Overlap]) -> Included:
    """Yes if one of them is, else unknown if one is or there is none, else no."""
    answers = {one.included for one in found}
    if "yes" in answers:
        return "yes"
    return "no" if answers == {"no"} else "unknown"


def mark(found: Mapping[str, Overlap], titles: Mapping[str, str]) -> dict[str, str] | None:
    """The mark's label and meaning: of images that were seen, or may have been; else none.

    found: by the images' name, as :meth:`Overlaps.of` has it; titles: the shown names.
    """
    seen = {name: one.source for name, one in found.items() if one.included == "yes"}
    if seen:
        named = "; ".join(f"{titles[name]} ({source})" for name, source in seen.items())
        return {"label": "seen", "meaning": f"Pre-training included {named}."}
    unknown = [titles[name] for name, one in found.items() if one.included == "unknown"]
    if unknown:
        sentences = f"Whether pre-training included {', '.join(unknown)} is not known."
        return {"label": "seen?", "meaning": sentences}
    return None
