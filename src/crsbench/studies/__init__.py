"""The studies that need nothing but the tables; each gives a table, a sentence and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crsbench.studies.base import Inputs, Study

STUDIES = {
    "rank_agreement": "rank_agreement",
    "movers": "rank_agreement",
    "institutional_shift": "institutional_shift",
    "label_efficiency": "label_efficiency",
    "axis_redundancy": "axis_redundancy",
    "external_validity": "external_validity",
    "leave_one_dataset_out": "leave_one_dataset_out",
    "reference_invariance": "reference_invariance",
    "stress_calibration": "stress_calibration",
    "weight_sensitivity": "sensitivity",
    "anchor_sensitivity": "sensitivity",
    "floors": "floors",
    "floor_scores": "floors",
}
"""Each study with its module; a study is the function of its name. The modules are imported when a
study runs, so that the workflow can name the studies' files without drawing libraries."""

RECALIBRATION_STUDIES = (
    *("recalibration", "recalibration_under_stress"),
    *("recalibration_cases", "recalibration_on_target"),
)
"""The studies made from recalibrated cells, functions of the module ``recalibration``."""

OPTIONAL = ("stress_calibration",)
"""Studies that are made only if the key ``studies`` of the config holds their settings."""


def studies_of(settings: Mapping[str, Any]) -> list[str]:
    """The studies to make under the key ``studies`` of a config."""
    return [name for name in STUDIES if name not in OPTIONAL or name in settings]


def case_study_names(settings: Mapping[str, Any]) -> list[str]:
    """The studies of test cases that a config's `studies` ask for, in the order to show them."""
    wanted = {
        "subgroups": ["subgroups", "subgroup_gaps"],
        "operating_points": ["operating_points"],
        "selective_prediction": ["selective_prediction", "risk_coverage", "conformal_sets"],
        "shift_detection": ["shift_detection"],
        "target_predictors": ["target_predictors"],
    }
    names = [name for key, of_key in wanted.items() if settings.get(key) for name in of_key]
    if settings.get("subgroups", {}).get("equity"):
        names.append("equity")
    if "net_benefit" in settings.get("operating_points", {}):
        names.append("net_benefit")
    return names


def run_study(name: str, inputs: Inputs) -> Study:
    """Run the study called ``name``, a key of :data:`STUDIES`."""
    study: Study = getattr(import_module(f"crsbench.studies.{STUDIES[name]}"), name)(inputs)
    return study
