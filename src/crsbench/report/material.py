"""What the report is made from: the tables, the studies and what the registries say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.config.overlap import Overlaps
from crsbench.core.files import read_table
from crsbench.core.names import SEED_MEAN
from crsbench.score import Scoring
from crsbench.studies.base import read_figure

Entries = Mapping[str, Mapping[str, Any]]

TABLES = (
    *("runs", "rows", "axes", "crs", "bootstrap", "bootstrap_pairs", "bootstrap_ranks"),
    *("confidence_bins", "reproduction"),
)
"""The tables of a run that the report reads, by name."""

OPTIONAL_TABLES = ("reliability", "joint_bootstrap", "joint_bootstrap_pairs")
"""Those that it reads where the run has them."""

KIND_TITLES = {
    "gaussian_blur": "Gaussian blur",
    "jpeg": "JPEG",
    "rician_noise": "Rician noise",
    "fov_crop": "field-of-view crop",
}


def kind_title(kind: str) -> str:
    """The shown name of a kind of perturbation."""
    return KIND_TITLES.get(kind, kind.replace("_", " "))


@dataclass(frozen=True, eq=False)
class MadeStudy:
    """A study as it lies on disk: its table, the sentence and findings, the figure as SVG text."""

    table: pd.DataFrame
    sentence: str
    findings: Mapping[str, float | int | str | None]
    figure: str

    @classmethod
    def read(cls, table_file: Path | str, figure_file: Path | str) -> MadeStudy:
        table, metadata = read_table(table_file)
        drawn = metadata.get("drawn", True)  # else the figure says no more than the sentence
        figure = read_figure(figure_file) if drawn else ""
        return cls(table, metadata["sentence"], metadata["findings"], figure)


@dataclass(frozen=True, eq=False)
class Material:
    """All that the page shows. Entries are registry entries in the panel's order."""

    tables: Mapping[str, pd.DataFrame]
    """By the names in :data:`TABLES`, and those of :data:`OPTIONAL_TABLES` that there are."""
    studies: Mapping[str, MadeStudy]
    encoders: Entries
    datasets: Entries
    targets: Entries
    scoring: Scoring
    audits: Sequence[Mapping[str, Any]] = ()
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Cells (encoder, data set) that the config leaves out of the panel, each with its reason."""
    gallery: Sequence[Mapping[str, Any]] = ()
    """From :func:`crsbench.report.gallery.gallery`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """From :func:`crsbench.report.provenance.provenance`."""

    @cached_property
    def overlaps(self) -> Overlaps:
        """What pre-training is known to have had of the images."""
        return Overlaps(self.encoders, self.datasets, self.targets)

    @property
    def known(self) -> Entries:
        """The config's encoders and, under their bare names, the frozen panel's others."""
        frozen = sorted(set(self.tables["crs"]["encoder"]) - set(self.encoders))
        return {**self.encoders, **{name: {"title": name, "group": "frozen"} for name in frozen}}

    @property
    def titles(self) -> dict[str, str]:
        """The shown names of encoders, data sets and targets."""
        entries = {**self.targets, **self.datasets, **self.known}
        return {name: str(spec["title"]) for name, spec in entries.items()}

    @property
    def floors(self) -> list[str]:
        return [name for name, spec in self.encoders.items() if spec["group"] == "floor"]

    @property
    def synthetic(self) -> list[str]:
        """The titles of the data sets that a program drew."""
        return [
            str(spec["title"]) for spec in self.datasets.values() if spec.get("reader") == "phantom"
        ]

    @property
    def seed_means(self) -> pd.DataFrame:
        axes = self.tables["axes"]
        return axes[axes["seed"] == SEED_MEAN]


def read_material(files: Mapping[str, Any], studies: Sequence[str], **known: Any) -> Material:
    """Read the tables and studies that a rule names.

    files: by the names in :data:`TABLES` a file each, of :data:`OPTIONAL_TABLES` those there are,
    and `studies` and `figures`, the files of `studies` in their order, unless there are none;
    known: the other fields of :class:`Material`.
    """
    pairs = zip(studies, files["studies"], files["figures"], strict=True) if studies else ()
    names = [*TABLES, *(name for name in OPTIONAL_TABLES if files.get(name))]
    return Material(
        {name: read_table(files[name])[0] for name in names},
        {name: MadeStudy.read(table, figure) for name, table, figure in pairs},
        **known,
    )
