"""A frozen reference panel, which newcomers are scored against."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.names import SEED_MEAN
from crsbench.score.scoring import MEASURES, Scoring


@dataclass(frozen=True, eq=False)
class Reference:
    """A frozen panel; what makes one is in :mod:`crsbench.score.freezing`."""

    name: str
    scoring: Scoring
    axes: pd.DataFrame
    """The table of axes of the panel, single seeds and means."""
    digests: Mapping[str, str]
    """SHA-256 of the files that made the panel, by name."""

    @property
    def encoders(self) -> list[str]:
        return sorted(self.axes["encoder"].unique())

    def joined_with(self, axes: pd.DataFrame, scoring: Scoring) -> pd.DataFrame:
        """The frozen panel and the newcomers of ``axes`` in one table of axes.

        Raises:
            UserError: ``scoring`` is not the frozen one, a newcomer has a data set that the
                reference lacks, or a cell of the panel occurs in ``axes`` with other values.
        """
        self._require_same_scoring(scoring)
        in_panel = axes["encoder"].isin(self.encoders)
        self._require_same_panel(axes[in_panel])
        newcomers = axes[~in_panel]
        uncovered = sorted(set(newcomers["dataset"]) - set(self.axes["dataset"]))
        if uncovered:
            raise UserError(
                f"the frozen reference {self.name} has no data set {uncovered[0]}; it covers "
                f"{', '.join(sorted(self.axes['dataset'].unique()))}"
            )
        return pd.concat([self.axes, newcomers], ignore_index=True)

    def _require_same_scoring(self, scoring: Scoring) -> None:
        frozen, current = flattened(self.scoring.to_json()), flattened(scoring.to_json())
        for key, value in frozen.items():
            if current[key] != value:
                raise UserError(
                    f"{key} is {current[key]!r} in the scoring file but {value!r} in the frozen "
                    f"reference {self.name}: restore it, or freeze a reference of another name"
                )

    def _require_same_panel(self, axes: pd.DataFrame) -> None:
        frozen, current = measures_by_seed(self.axes), measures_by_seed(axes)
        cells = {index[:2] for index in current}
        advice = (
            f"; the panel of the frozen reference {self.name} must not change: restore what made "
            "it, rename the encoder, or freeze a reference of another name"
        )
        for index in sorted(frozen.keys() | current.keys()):
            where = "{} on {}, seed {}".format(*index)
            if index[:2] not in cells:
                continue  # a cell of the panel that has no run here
            if index not in frozen:
                raise UserError(f"{where}: not in the frozen panel" + advice)
            if index not in current:
                raise UserError(f"{where}: frozen, but absent from the runs" + advice)
            for measure, was, now in zip(MEASURES, frozen[index], current[index], strict=True):
                if was != now and not (math.isnan(was) and math.isnan(now)):
                    raise UserError(
                        f"{where}: {measure} is {float(now)!r}, frozen as {float(was)!r}" + advice
                    )


def measures_by_seed(axes: pd.DataFrame) -> dict[tuple[Any, ...], tuple[float, ...]]:
    """The measures, in the order of ``MEASURES``, of each encoder, data set and single seed."""
    single = axes[axes["seed"] != SEED_MEAN]
    keys = zip(single["encoder"], single["dataset"], single["seed"], strict=True)
    return dict(zip(keys, zip(*(single[name] for name in MEASURES), strict=True), strict=True))


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys, so that a difference can be named."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat
