"""The studies of test cases that go beyond the published ones: what is made, from which files.

Each is absent unless the config names it under `studies`. All are made in one pass over the cells,
so that kept predictions and features are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.grid import Cell, Grid
from crsbench.config.layout import Layout
from crsbench.config.model import Config
from crsbench.config.schema import read_closed
from crsbench.core.errors import UserError
from crsbench.core.names import CLEAN, nearest
from crsbench.core.progress import progress
from crsbench.data.manifest import Manifest, read_manifest
from crsbench.data.readers import stated_subgroups
from crsbench.data.splits import CALIBRATION, TEST, TRAIN, read_split
from crsbench.evaluation.cases import CellCases
from crsbench.evaluation.predictions import CellReader
from crsbench.evaluation.runs import unseen
from crsbench.features.store import read_features
from crsbench.studies import case_results as results
from crsbench.studies.base import Inputs, Study
from crsbench.studies.operating_points import (
    BENEFIT_COLUMNS,
    POINT_COLUMNS,
    Aim,
    net_benefit,
    operating_points,
    typed,
)
from crsbench.studies.selective_prediction import (
    CONFORMAL_COLUMNS,
    RISK_COLUMNS,
    SELECTIVE_COLUMNS,
    conformal_sets,
    selective_prediction,
)
from crsbench.studies.shift_detection import (
    SHIFT_DETECTION_COLUMNS,
    SeenImages,
    ShiftDetectionSettings,
    shift_detection,
)
from crsbench.studies.subgroups import (
    EQUITY_COLUMNS,
    GAP_COLUMNS,
    SUBGROUP_COLUMNS,
    SubgroupSettings,
    subgroups_of,
)
from crsbench.studies.target_predictors import target_predictors

TABLES = {
    "subgroups": SUBGROUP_COLUMNS,
    "subgroup_gaps": GAP_COLUMNS,
    "equity": EQUITY_COLUMNS,
    "operating_points": POINT_COLUMNS,
    "net_benefit": BENEFIT_COLUMNS,
    "selective_prediction": SELECTIVE_COLUMNS,
    "risk_coverage": RISK_COLUMNS,
    "conformal_sets": CONFORMAL_COLUMNS,
    "shift_detection": SHIFT_DETECTION_COLUMNS,
}
Records = dict[str, list[dict[str, Any]]]


def run_case_studies(config: Config, inputs: Inputs, names: Sequence[str]) -> dict[str, Study]:
    """Make the studies called `names`, see `crsbench.studies.case_study_names`."""
    records: Records = {name: [] for name in names if name in TABLES}
    sources = _Sources(config)
    cells = sources.grid.cells if records else []
    for cell in progress(cells, "test cases", len(cells), "cell"):
        for name, rows in _of_cell(config.settings["studies"], sources, cell).items():
            if name in records:
                records[name] += rows
    tables = {name: typed(rows, TABLES[name]) for name, rows in records.items()}
    if "equity" in tables:
        tables["equity"] = _beside_axes(tables["equity"], inputs)
    studies = {name: results.STUDIES[name](inputs, table) for name, table in tables.items()}
    if "target_predictors" in names:
        studies["target_predictors"] = target_predictors(inputs, tables.get("shift_detection"))
    return {name: studies[name] for name in names}


class _Sources:
    """The files of a run, and what is read of a data set once for all its encoders."""

    def __init__(self, config: Config) -> None:
        self.config, self.grid, self.layout = config, Grid(config), Layout(config.results)
        self.readers: dict[str, CellReader] = {}
        self.manifests: dict[str, Manifest] = {}
        self._check_columns(config.settings["studies"].get("subgroups", {}).get("columns", ()))

    def _check_columns(self, columns: Sequence[str]) -> None:
        """Each is of a data set of the panel, or of another one in the registry, which is noted."""
        every = [*self.config.datasets, *self.config.targets]
        known = {name for of in every for name in self.manifest(of).subgroups} if columns else set()
        lacking = [name for name in columns if name not in known]
        if not lacking:
            return
        file = self.config.home / self.config.settings["dataset_registry"]
        registry = read_closed(file, "datasets")
        elsewhere = {name for spec in registry.values() for name in stated_subgroups(spec)}
        for name in lacking:
            if name not in elsewhere:
                raise UserError(
                    f"studies.subgroups.columns has '{name}', which is a subgroup column of none "
                    f"of the data sets{nearest(name, sorted(known))}; they have: "
                    f"{', '.join(sorted(known))}."
                )
        left_out = ", ".join(lacking)
        print(f"Left out of studies.subgroups, for no data set of the panel has it: {left_out}.")

    def manifest_file(self, dataset: str) -> str:
        return self.layout.at(self.layout.manifest, dataset=dataset)

    def split_file(self, dataset: str, seed: int) -> str:
        return self.layout.at(self.layout.split, dataset=dataset, seed=seed)

    def manifest(self, dataset: str) -> Manifest:
        if dataset not in self.manifests:
            self.manifests[dataset] = read_manifest(self.manifest_file(dataset))
        return self.manifests[dataset]

    def cell(self, cell: Cell) -> CellCases:
        if cell.dataset not in self.readers:
            targets = {to: self.manifest(to) for to in self.config.datasets[cell.dataset].shift}
            replicates = self.config.settings["studies"]["replicates"]
            conditions = self.grid.conditions(cell.dataset)
            manifest = self.manifest(cell.dataset)
            reader = CellReader(manifest, conditions, targets, replicates)
            self.readers.clear()  # one data set's resamples at a time
            self.readers[cell.dataset] = reader
        files = [self.layout.predictions_file(cell, seed) for seed in self.config.seeds]
        return self.readers[cell.dataset].read(cell.encoder, files)

    def seen(self, cell: Cell, condition: str, of: str, rows: np.ndarray) -> SeenImages:
        """Features of some images (mask or places) of the data set `of` under a condition."""
        manifest = self.manifest(of)
        names = {"encoder": cell.encoder, "dataset": cell.dataset, "condition": condition}
        file = self.layout.at(self.layout.features, **names)
        ids = manifest.image_ids[rows]
        groups = np.char.add(f"{manifest.group_namespace}\x1f", manifest.groups[rows])
        return SeenImages(ids, groups, read_features(file).rows(ids, file))


def _of_cell(settings: Mapping[str, Any], sources: _Sources, cell: Cell) -> Records:
    found: Records = {}
    kept = {"subgroups", "operating_points", "selective_prediction"} & set(settings)
    read = sources.cell(cell) if kept else None
    points = settings.get("operating_points")
    targets, aim = None, None
    if points and read:
        targets, aim = sources.config.datasets[cell.dataset].positive_classes, Aim.of(points)
        found["operating_points"] = operating_points(read, targets, aim)
        if "net_benefit" in points:
            found["net_benefit"] = net_benefit(read, targets, points["net_benefit"])
    if "subgroups" in settings and read:
        own = settings["subgroups"]
        of = SubgroupSettings(
            tuple(own["columns"]),
            own.get("bands", {}),
            own["min_images"],
            own["min_cases"],
            tuple(own.get("match", ())),
        )
        compared = subgroups_of(read, of, targets, aim)
        found["subgroups"], found["subgroup_gaps"] = compared.groups, compared.gaps
        found["equity"] = [compared.equity]
    if "selective_prediction" in settings and read:
        own = settings["selective_prediction"]
        areas, risks = selective_prediction(read, own["coverages"])
        found["selective_prediction"], found["risk_coverage"] = areas, risks
        found["conformal_sets"] = conformal_sets(read, own["error_rate"])
    if "shift_detection" in settings:
        own = ShiftDetectionSettings(**settings["shift_detection"])
        found["shift_detection"] = _shift_detection_of(sources, cell, own, settings["replicates"])
    return found


def _shift_detection_of(
    sources: _Sources, cell: Cell, settings: ShiftDetectionSettings, replicates: int
) -> list[dict[str, Any]]:
    """On the split of the first seed: the features are the same for all."""
    manifest = sources.manifest(cell.dataset)
    home = sources.manifest_file(cell.dataset)
    split_file = sources.split_file(cell.dataset, sources.config.seeds[0])
    part = read_split(split_file, manifest).part
    train, calibration = (
        sources.seen(cell, CLEAN, cell.dataset, part == which) for which in (TRAIN, CALIBRATION)
    )
    others = {
        condition: sources.seen(cell, condition, cell.dataset, part == TEST)
        for condition in (CLEAN, *sources.grid.degraded)
    }
    clean = others.pop(CLEAN)
    for target in sources.config.datasets[cell.dataset].shift:
        external = sources.manifest_file(target)
        others[target] = sources.seen(cell, target, target, unseen(external, home, split_file))
    found = shift_detection(train, calibration, clean, others, settings, replicates, cell.dataset)
    return [{"encoder": cell.encoder, "dataset": cell.dataset} | row for row in found]


def _beside_axes(equity: pd.DataFrame, inputs: Inputs) -> pd.DataFrame:
    """The four published axes beside the fifth; none of them changes."""
    axes = inputs.axes[inputs.axes["seed"] == -1].set_index(["encoder", "dataset"])
    names = [name for name in EQUITY_COLUMNS if name.startswith("axis_")]
    keys = pd.MultiIndex.from_frame(equity[["encoder", "dataset"]].astype(object))
    equity[names] = axes[names].reindex(keys).to_numpy()
    return equity
