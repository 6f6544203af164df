"""What a study is given and what it gives: a table, a sentence, findings by name, a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from crsbench.config.overlap import Overlaps
from crsbench.core.files import (
    BLANK_CHECKSUM,
    atomic_write,
    checksummed,
    read_checksummed,
    read_table,
    write_table,
)
from crsbench.core.names import AGGREGATE, CLEAN, SEED_MEAN
from crsbench.core.names import number as number
from crsbench.core.plotting import GROUP_COLOURS, house_style, short, svg_text
from crsbench.score import Reference, Scoring, load_reference, load_scoring
from crsbench.score.axes import BOTH_SIDES
from crsbench.score.crs import Panel

MIN_ENCODERS = 3
"""Below it a correlation of rankings says nothing, so none is made."""

MEDICAL_GROUPS = ("medical", "specialist")

Finding = float | int | str | None


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tables of a run and what the registries say of its encoders and data sets."""

    runs: pd.DataFrame
    axes: pd.DataFrame
    crs: pd.DataFrame
    scoring: Scoring
    reference: Reference | None
    encoders: Mapping[str, Mapping[str, Any]]
    """Registry entries by name, in the order of the config."""
    datasets: Mapping[str, Mapping[str, Any]]
    targets: Mapping[str, Mapping[str, Any]]
    """The shift targets' entries."""
    settings: Mapping[str, Any]
    """The key ``studies`` of the config."""

    @classmethod
    def read(cls, files: Any, params: Any) -> Inputs:
        """What a job was given.

        files: the paths ``runs, axes, crs, scoring`` and, where there is one, ``reference``, as
        attributes; params: ``encoders, datasets, targets, settings``, as attributes.
        """
        reference = getattr(files, "reference", None)
        return cls(
            runs=read_table(files.runs)[0],
            axes=read_table(files.axes)[0],
            crs=read_table(files.crs)[0],
            scoring=load_scoring(files.scoring),
            reference=load_reference(reference) if reference else None,
            encoders=params.encoders,
            datasets=params.datasets,
            targets=params.targets,
            settings=params.settings,
        )

    @property
    def floors(self) -> list[str]:
        return [name for name, spec in self.encoders.items() if spec["group"] == "floor"]

    @property
    def panel(self) -> Panel:
        """The encoders of the run and of the frozen reference, if there is one."""
        return Panel.of(self.axes, self.scoring, self.reference, self.floors)

    @property
    def ranked(self) -> pd.DataFrame:
        """The rows of ``crs`` that have a score and are no floors."""
        return self.crs[~self.crs["floor"] & self.crs["crs"].notna()].reset_index(drop=True)

    @property
    def aggregate(self) -> pd.DataFrame:
        """The ranked encoders' rows of the aggregate, by encoder."""
        ranked = self.ranked
        return ranked[ranked["dataset"] == AGGREGATE].set_index("encoder").sort_index()

    @property
    def seed_means(self) -> pd.DataFrame:
        """The seed-mean rows of ``axes`` without the floors, by encoder and data set."""
        axes = self.axes[self.axes["seed"] == SEED_MEAN]
        axes = axes[~axes["encoder"].isin(self.floors)]
        return axes.sort_values(["encoder", "dataset"], ignore_index=True)

    @property
    def shifts(self) -> list[tuple[str, str]]:
        """Data set and shift target, for each pair of the run."""
        return [(name, to) for name, spec in self.datasets.items() for to in spec.get("shift", ())]

    def title(self, name: str) -> str:
        """The shown name of an encoder or data set; one of the frozen panel may have none."""
        for entries in (self.encoders, self.datasets, self.targets):
            if name in entries:
                return str(entries[name]["title"])
        return name

    def label(self, name: str) -> str:
        """The shown name, cut to what a figure can hold."""
        return short(self.title(name))

    def titles(self, names: Sequence[str]) -> str:
        return " and ".join(self.title(name) for name in names)

    def group(self, encoder: str) -> str:
        """The encoder's group; ``frozen`` for one of the frozen panel that the config lacks."""
        return self.encoders[encoder]["group"] if encoder in self.encoders else "frozen"

    def colour(self, encoder: str) -> str:
        return GROUP_COLOURS[self.group(encoder)]

    def shift_auroc(self, dataset: str, target: str) -> pd.DataFrame:
        """Macro-AUROC at home and elsewhere by encoder, means over seeds at 100 % of the labels.

        Both are over the classes that are shared and defined on both sides, where the table of runs
        has them so (``source_macro_auroc`` and ``target_macro_auroc`` of the target's runs). Floors
        and encoders with an undefined value in one seed are left out.

        Returns:
            Columns ``source_auroc, target_auroc``; the index is the encoder, sorted.
        """
        full = self.runs[(self.runs["dataset"] == dataset) & (self.runs["percent"] == 100)]
        full = full[~full["encoder"].isin(self.floors)].set_index(["encoder", "seed"])
        elsewhere = full[full["condition"] == target]
        if set(BOTH_SIDES) <= set(elsewhere.columns):
            sides = elsewhere[list(BOTH_SIDES)].astype("float64")
            sides.columns = ["source_auroc", "target_auroc"]
        else:
            sides = elsewhere[["macro_auroc"]].rename(columns={"macro_auroc": "target_auroc"})
            home = full.loc[full["condition"] == CLEAN, "macro_auroc"]
            sides.insert(0, "source_auroc", home.reindex(sides.index))
        by_encoder = sides.sort_index().groupby("encoder")
        return by_encoder.mean()[by_encoder.count().eq(by_encoder.size(), axis=0).all(axis=1)]


@dataclass(frozen=True, eq=False)
class Study:
    """The result of a study.

    ``findings`` are the numbers that sum it up, by dotted names; a published figure called
    ``<study>.<name>`` is compared with them. A NaN is kept as None: undefined, and so said.
    """

    table: pd.DataFrame
    sentence: str
    findings: Mapping[str, Finding] = field(default_factory=dict)
    draw: Callable[[Figure], None] | None = None


def not_run(columns: Sequence[str], reason: str) -> Study:
    """A study that this run has nothing for: no rows, and the reason as its sentence."""
    return Study(pd.DataFrame(columns=list(columns)), f"Not run: {reason}.")


def write_study(
    table_file: Path | str,
    figure_file: Path | str,
    name: str,
    study: Study,
    overlaps: Overlaps | None = None,
) -> None:
    """Write a study's table (sentence and findings in its metadata) and its figure as SVG.

    overlaps: of the panel, for the table's column `overlap`.
    """
    findings = {key: _plain(value) for key, value in study.findings.items()}
    content = {"sentence": study.sentence, "findings": findings, "drawn": study.draw is not None}
    metadata = {"study": name, **content}
    with house_style():
        figure = Figure(layout="constrained")
        if study.draw is None:
            figure.set_size_inches(6, 1.2)
            figure.text(0.5, 0.5, study.sentence, ha="center", va="center", wrap=True)
        else:
            study.draw(figure)
        svg = svg_text(figure)
    with atomic_write(figure_file) as part:
        part.write_bytes(checksummed(b"%s<!-- %s -->\n" % (svg.encode(), BLANK_CHECKSUM)))
    table = study.table if overlaps is None else overlaps.add_to(study.table)
    write_table(table_file, table, metadata)


def read_figure(figure_file: Path | str) -> str:
    """The `<svg>` element of a study's figure; UserError when it is not what was written."""
    return read_checksummed(figure_file).rpartition(b"<!--")[0].decode()


def mean_by_encoder(values: pd.DataFrame, column: str) -> pd.Series:
    """Mean of a column over the data sets that each encoder has; missing if one is missing."""
    by_encoder = values.sort_values("dataset").groupby("encoder")[column]
    return by_encoder.apply(lambda of: sum(of.tolist()) / len(of))


def _plain(value: Any) -> Finding:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return int(value)
