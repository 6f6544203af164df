"""What a study is given: the parts of a run, each read when a study first asks for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import pandas as pd

from crsbench.config.overlap import Overlaps
from crsbench.core.files import read_table
from crsbench.core.names import AGGREGATE, CLEAN, SEED_MEAN
from crsbench.core.plotting import GROUP_COLOURS, short
from crsbench.core.progress import progress
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.evaluation.cases import CellCases
from crsbench.evaluation.control_probes import collect_control_runs
from crsbench.evaluation.predictions import CellReader
from crsbench.evaluation.runs import collect_runs
from crsbench.features.settings import ExtractionSettings
from crsbench.score import Reference, Scoring, load_reference, load_scoring
from crsbench.score.axes import BOTH_SIDES
from crsbench.score.crs import Panel

Entries = Mapping[str, Mapping[str, Any]]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The files of a run, and what the registries and the config say of it.

    encoders, datasets, targets: registry entries by name, in the config's order, targets those of
    the shift targets; settings: the sections of the config that the studies depend on; files: a
    path or several by the name of the part, as the properties read them; cells, seeds, conditions
    (by data set): whose kept predictions and features the files are, in their order.
    """

    encoders: Entries
    datasets: Entries
    targets: Entries
    settings: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    cells: Sequence[tuple[str, str]] = ()
    seeds: Sequence[int] = ()
    conditions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stated_subgroups: Sequence[str] = ()
    """The subgroup columns asked for that the entry of some data set of the registry states."""
    extraction: ExtractionSettings | None = None
    """What the features of the cells must have been made by; None: whatever made them is right."""

    @classmethod
    def of_job(cls, files: Any, params: Any) -> Inputs:
        """What a job was given: its files by name, and parameters called as the fields."""
        given = {one.name: params[one.name] for one in fields(cls) if one.name != "files"}
        return cls(**given, files=dict(files.items()))

    def having(self, **parts: Any) -> Inputs:
        """The same with these parts or fields in place of what would be read."""
        other = copy.copy(self)
        vars(other).pop("_passes", None)
        vars(other).update(parts)
        return other

    # --- tables -------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> pd.DataFrame:
        return read_table(self.files["runs"])[0]

    @cached_property
    def axes(self) -> pd.DataFrame:
        return read_table(self.files["axes"])[0]

    @cached_property
    def crs(self) -> pd.DataFrame:
        return read_table(self.files["crs"])[0]

    @cached_property
    def scoring(self) -> Scoring:
        return load_scoring(self.files["scoring"])

    @cached_property
    def reference(self) -> Reference | None:
        """The frozen reference, if the config names one."""
        return load_reference(self.files["reference"]) if self.files.get("reference") else None

    # --- recalibrated cells, control runs, depth runs, adapted runs -----------------------------

    @cached_property
    def recalibrated(self) -> pd.DataFrame:
        """The published table of recalibrated cells, see `docs/tables.md`."""
        return self._of_cells("recalibrated")

    @cached_property
    def reliability(self) -> pd.DataFrame:
        """The published table of reliability diagrams before and after recalibration."""
        return self._of_cells("reliability")

    @cached_property
    def recalibration_cases(self) -> pd.DataFrame:
        """With few cases, see :class:`crsbench.calibration.cells.RecalibratedCell`."""
        return self._of_cells("cases")

    def _of_cells(self, part: str) -> pd.DataFrame:
        """The tables of all recalibrated cells, sorted by cell, with `primary` and `overlap`."""
        table = self._joined(part)
        primary = table["encoder"].isin(self.settings["recalibration"]["primary"])
        cell = table[["encoder", "dataset"]].assign(primary=primary)
        table = pd.concat([cell, table.drop(columns=["encoder", "dataset"])], axis=1)
        table = table.sort_values(["dataset", "encoder"], kind="stable", ignore_index=True)
        return Overlaps(self.encoders, self.datasets, self.targets).add_to(table)

    @cached_property
    def control_runs(self) -> pd.DataFrame:
        """The published table of runs under the control probes."""
        return collect_control_runs(self.files["control_runs"])

    @cached_property
    def depth_runs(self) -> pd.DataFrame:
        """Rows of :func:`crsbench.evaluation.depth.probe_depths`."""
        return self._joined("depth_runs")

    @cached_property
    def frozen_runs(self) -> pd.DataFrame:
        """The runs of the frozen encoders that `adapted_runs` are compared with."""
        return collect_runs(self.files["frozen_runs"])

    @cached_property
    def adapted_runs(self) -> pd.DataFrame:
        return self._joined("adapted_runs")

    def _joined(self, part: str) -> pd.DataFrame:
        return pd.concat([read_table(file)[0] for file in self.files[part]], ignore_index=True)

    # --- test cases -----------------------------------------------------------------------------

    @cached_property
    def manifest_files(self) -> Mapping[str, str]:
        return dict(zip([*self.datasets, *self.targets], self.files["manifests"], strict=True))

    @cached_property
    def manifests(self) -> Mapping[str, Manifest]:
        """Of all data sets and shift targets."""
        return {name: read_manifest(file) for name, file in self.manifest_files.items()}

    @cached_property
    def feature_files(self) -> Mapping[tuple[str, str, str], str]:
        """By encoder, data set and condition."""
        keys = [(*cell, condition) for cell in self.cells for condition in self.conditions[cell[1]]]
        return dict(zip(keys, self.files["features"], strict=True))

    def features_made_by(self, encoder: str, condition: str) -> Mapping[str, Any] | None:
        """What a file of `feature_files` must have been made by, for `read_features`."""
        if self.extraction is None:
            return None
        wanted = self.extraction.clean() if condition in self.targets else self.extraction
        return wanted.made_by[encoder]

    @cached_property
    def split_files(self) -> Mapping[str, str]:
        """By data set, of the first seed."""
        return dict(zip(self.datasets, self.files["splits"], strict=True))

    @cached_property
    def _passes(self) -> dict[Callable[..., Any], dict[str, list[Row]]]:
        return {}

    def of_all(
        self, what: Callable[[Inputs, Any], Mapping[str, Sequence[Row]]], each: Iterable[Any]
    ) -> Mapping[str, list[Row]]:
        """The rows, by table, that a function makes of each cell, in the order of `cells`.

        A function goes over the cells once, however many studies ask for its rows.
        """
        if what not in self._passes:
            found: dict[str, list[Row]] = {}
            for cell in progress(each, "test cases", len(self.cells), "cell"):
                for name, rows in what(self, cell).items():
                    found.setdefault(name, []).extend(rows)
            order = {cell: place for place, cell in enumerate(self.cells)}
            for rows in found.values():
                rows.sort(key=lambda row: order[row["encoder"], row["dataset"]])
            self._passes[what] = found
        return self._passes[what]

    def predicted_cells(self) -> Iterator[CellCases]:
        """Each cell's kept predictions, data set by data set: its resamples are drawn once."""
        n, files = len(self.seeds), self.files["predictions"]
        kept = {cell: files[n * at : n * (at + 1)] for at, cell in enumerate(self.cells)}
        for dataset in self.datasets:
            targets = {to: self.manifests[to] for to in self.datasets[dataset].get("shift", ())}
            replicates = self.settings["studies"]["replicates"]
            reader = CellReader(
                self.manifests[dataset], self.conditions[dataset], targets, replicates
            )
            for encoder, of in self.cells:
                if of == dataset:
                    yield reader.read(encoder, kept[encoder, dataset])

    # --- what is said of them -------------------------------------------------------------------

    @property
    def floors(self) -> list[str]:
        return [name for name, spec in self.encoders.items() if spec["group"] == "floor"]

    def without_floors(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that are not of a floor."""
        return rows[~rows["encoder"].isin(self.floors)]

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
        return self.without_floors(axes).sort_values(["encoder", "dataset"], ignore_index=True)

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
        full = self.without_floors(full).set_index(["encoder", "seed"])
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
