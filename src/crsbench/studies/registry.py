"""What a study is, and the one place where each is registered: its own module.

A study is a function from :class:`crsbench.studies.inputs.Inputs` to a :class:`Study`. The
decorator :func:`study` holds all that the workflow, the report and the documentation say of it, so
that adding a study is adding one module to this package. The workflow's own process imports all of
them, hence no module of a study loads SciPy's parts or a drawing library before it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crsbench.studies.inputs import Inputs

THEMES = {
    "auroc": "AUROC against CRS",
    "sure": "How sure is a rank?",
    "calibration": "Calibration",
    "stress": "Degraded images",
    "labels": "Fewer labels",
    "elsewhere": "At another institution",
    "adapted": "Other depths, other training",
    "choices": "How much depends on design choices?",
    "floors": "Against a floor",
    "use": "In use",
}
"""The report's sections of studies, in their order, with their headings."""

SOURCES = {
    "tables": "studies",
    "recalibrated_cells": "recalibration",
    "kept_predictions": "studies",
    "features": "studies",
    "control_runs": "",
    "depth_runs": "",
    "adapted_runs": "adaptation",
}
"""What a study may be made of, the costlier to read the later, each with the section of the config
that it depends on."""

Finding = float | int | str | None
Row = dict[str, Any]


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


def not_run(reason: str) -> Study:
    """A study that this run has nothing for: no rows, and the reason as its sentence."""
    return Study(pd.DataFrame(), f"Not run: {reason}.")


@dataclass(frozen=True, eq=False)
class RegisteredStudy:
    """A study with all that is said of it; called with `Inputs` it gives a :class:`Study`.

    theme: a key of :data:`THEMES`; needs: keys of :data:`SOURCES`; columns: dtypes of the table by
    name, in its order; limit: what the figure does not say; wanted: whether a config (all its
    settings) asks for the study.
    """

    function: Callable[[Inputs], Study]
    title: str
    theme: str
    needs: tuple[str, ...]
    columns: Mapping[str, Any]
    limit: str
    wanted: Callable[[Mapping[str, Any]], bool]

    @property
    def job(self) -> str:
        """The last of its needs: one job makes all studies that share it, and reads it once."""
        return max(self.needs, key=list(SOURCES).index)

    def __call__(self, inputs: Inputs) -> Study:
        """The study with the declared columns; KeyError where its table lacks one."""
        made = self.function(inputs)
        if made.table.empty:
            return replace(made, table=self.table([]))
        return replace(made, table=made.table[list(self.columns)].astype(dict(self.columns)))

    def table(self, rows: Iterable[Row]) -> pd.DataFrame:
        """The table of these rows with all columns and their dtypes, whatever is missing."""
        table = pd.DataFrame.from_records(list(rows)).reindex(columns=list(self.columns))
        return table.astype(dict(self.columns))


_REGISTERED: dict[str, RegisteredStudy] = {}


def study(
    *,
    title: str,
    theme: str,
    needs: tuple[str, ...],
    columns: Mapping[str, Any],
    limit: str,
    wanted: Callable[[Mapping[str, Any]], bool] = lambda settings: True,
) -> Callable[[Callable[[Inputs], Study]], RegisteredStudy]:
    """Register a function under its own name; the fields are :class:`RegisteredStudy`'s.

    Raises ValueError for a theme or a need that there is not, and for a name that is taken.
    """
    if theme not in THEMES or not needs or not set(needs) <= set(SOURCES):
        raise ValueError(f"no theme or need of a study: {theme}, {needs}")

    def register(function: Callable[[Inputs], Study]) -> RegisteredStudy:
        name = function.__name__
        if name in _REGISTERED:
            raise ValueError(f"two studies are called {name}")
        made = RegisteredStudy(function, title, theme, needs, columns, limit, wanted)
        _REGISTERED[name] = made
        return made

    return register


def studies() -> dict[str, RegisteredStudy]:
    """All studies of this package by name; their modules are imported."""
    package = import_module("crsbench.studies")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTERED)


def fields(dtype: Any, names: str) -> dict[str, Any]:
    """Columns of one dtype, their names separated by spaces."""
    return dict.fromkeys(names.split(), "str" if dtype is str else dtype)


CELL = fields(str, "encoder dataset")
"""The first columns of most tables."""

TESTED = fields("string", "encoder dataset condition")
"""Those of the tables of test cases."""
