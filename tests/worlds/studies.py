"""A synthetic table of runs on the published grid, and what the studies need of it.

SYNTHETIC: the numbers are drawn from a seeded generator. They bear the published names so that
counts can be compared (43 cells, 17,575 runs, 105 pairs), and say nothing about any encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from crsbench.config.grid import Grid
from crsbench.config.model import Config
from crsbench.evaluation.runs import RUN_COLUMNS
from crsbench.score import Scoring, load_scoring
from crsbench.score.tables import score_tables
from crsbench.studies import studies
from crsbench.studies.inputs import Inputs
from worlds.workflow import HOME

SCORING_FILE = HOME / "config" / "scoring.yaml"
REPLICATES = 500


def synthetic_runs(config: Config) -> pd.DataFrame:
    """SYNTHETIC runs of a configuration's whole grid: each encoder has a level of its own on each
    data set, loses AUROC with fewer labels, degraded images and on targets, and varies by seed."""
    runs = pd.DataFrame(Grid(config).runs())
    rng = np.random.default_rng(2608)

    def per(keys: list[str], spread: float) -> pd.Series:
        codes = runs.groupby(keys, sort=True).ngroup()
        return pd.Series(rng.normal(0, spread, codes.max() + 1)[codes], index=runs.index)

    level = 0.82 + per(["encoder"], 0.04) + per(["encoder", "dataset"], 0.02)
    hunger = 0.035 * np.exp(per(["encoder", "dataset"], 0.4)) * -np.log10(runs["percent"] / 100)
    frailty = 0.05 * np.exp(per(["encoder"], 0.5))
    elsewhere = runs["condition"].isin(list(config.targets))
    severity = (
        runs["condition"].str.extract(r"-(\d)$")[0].astype(float).fillna(0) / 3 + 2 * elsewhere
    )
    noise = per(["dataset", "seed"], 0.003) + per(["encoder", "dataset", "seed", "percent"], 0.004)
    runs["macro_auroc"] = (level - hunger - frailty * severity + noise).clip(0.3, 0.999)
    runs["ece"] = (0.08 + per(["encoder", "dataset"], 0.03) + noise).abs() + 0.03 * severity
    for name in ("classwise_ece", "adaptive_ece", "brier", "log_loss"):
        runs[name] = runs["ece"]
    runs["ece_if_calibrated"] = 0.02
    runs = runs.assign(n_test=1000, n_classes=5, n_classes_defined=5, c=1.0)
    return runs.assign(converged=True, capped=False)[list(RUN_COLUMNS)]


@dataclass(frozen=True, eq=False)
class World:
    """Runs and what the registries say of them."""

    runs: pd.DataFrame
    scoring: Scoring
    encoders: Mapping[str, Mapping[str, Any]]
    datasets: Mapping[str, Mapping[str, Any]]
    targets: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> World:
        return cls(
            synthetic_runs(config),
            load_scoring(SCORING_FILE),
            *(
                {name: dict(entry.spec) for name, entry in entries.items()}
                for entries in (config.encoders, config.datasets, config.targets)
            ),
            {"studies": config.settings["studies"]},
        )

    @property
    def floors(self) -> list[str]:
        return [name for name, spec in self.encoders.items() if spec["group"] == "floor"]

    def tables(self) -> dict[str, pd.DataFrame]:
        shift = {name: spec.get("shift", ()) for name, spec in self.datasets.items()}
        made = score_tables(self.runs, self.scoring, shift, None, self.floors, REPLICATES)
        return {"runs": self.runs, **made}

    def inputs(self) -> Inputs:
        tables = self.tables()
        own = Inputs(self.encoders, self.datasets, self.targets, self.settings)
        parts = {name: tables[name] for name in ("runs", "axes", "crs")}
        return own.having(**parts, scoring=self.scoring, reference=None)

    def only(self, encoders: list[str], datasets: list[str] | None = None) -> World:
        """The same world with fewer encoders and data sets."""
        datasets = list(self.datasets) if datasets is None else datasets
        runs = self.runs[self.runs["encoder"].isin(encoders) & self.runs["dataset"].isin(datasets)]
        return replace(
            self,
            runs=runs.reset_index(drop=True),
            encoders={name: self.encoders[name] for name in encoders},
            datasets={name: self.datasets[name] for name in datasets},
        )

    def with_floors(self, names: list[str]) -> World:
        """The same world with some of its encoders called floors."""
        changed = {name: {**self.encoders[name], "group": "floor"} for name in names}
        return replace(self, encoders={**self.encoders, **changed})


STUDIES = {name: one for name, one in studies().items() if one.needs == ("tables",)}
"""The studies that need nothing but the tables."""
