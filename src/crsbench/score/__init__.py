"""The score: anchors, axes, the Clinical Reliability Score, its frozen reference and bootstrap."""

from crsbench.score.axes import axes_table, runs_to_rows
from crsbench.score.bootstrap import SeedBootstrap, add_tiers, seed_bootstrap
from crsbench.score.crs import OWN_PANEL, crs_components, crs_table
from crsbench.score.freezing import freeze_reference, load_reference
from crsbench.score.reference import Reference
from crsbench.score.scoring import AXES, MEASURES, Axis, Scoring, Weights, load_scoring

__all__ = [
    "AXES",
    "MEASURES",
    "OWN_PANEL",
    "Axis",
    "Reference",
    "Scoring",
    "SeedBootstrap",
    "Weights",
    "add_tiers",
    "axes_table",
    "crs_components",
    "crs_table",
    "freeze_reference",
    "load_reference",
    "load_scoring",
    "runs_to_rows",
    "seed_bootstrap",
]
