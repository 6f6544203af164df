"""The frozen reference: a panel, its anchors and its published scores in one JSON file.

A newcomer is scored against the file, so what was published does not change by one bit.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.core.names import SEED_MEAN
from crsbench.score.axes import finish_axes
from crsbench.score.crs import crs_table
from crsbench.score.scoring import MEASURES, Scoring, parse_scoring

_KEYS = {"scoring", "panel", "scores", "digests"}
_CELL = ["encoder", "dataset"]


@dataclass(frozen=True, eq=False)
class Reference:
    """A frozen panel; made by :func:`freeze_reference` or :func:`load_reference`."""

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
        frozen, current = _flat(self.scoring.to_json()), _flat(scoring.to_json())
        for key, value in frozen.items():
            if current[key] != value:
                raise UserError(
                    f"{key} is {current[key]!r} in the scoring file but {value!r} in the frozen "
                    f"reference {self.name}: restore it, or freeze a reference of another name"
                )

    def _require_same_panel(self, axes: pd.DataFrame) -> None:
        key = [*_CELL, "seed"]
        frozen = self.axes[self.axes["seed"] != SEED_MEAN].set_index(key)[list(MEASURES)]
        current = axes[axes["seed"] != SEED_MEAN].set_index(key)[list(MEASURES)]
        cells = set(current.index.droplevel("seed"))
        frozen = frozen[[cell in cells for cell in frozen.index.droplevel("seed")]]
        advice = (
            f"; the panel of the frozen reference {self.name} must not change: restore what made "
            "it, rename the encoder, or freeze a reference of another name"
        )
        for index in sorted(frozen.index.union(current.index)):
            where = "{} on {}, seed {}".format(*index)
            if index not in frozen.index:
                raise UserError(f"{where}: not in the frozen panel" + advice)
            if index not in current.index:
                raise UserError(f"{where}: frozen, but absent from the runs" + advice)
            for measure in MEASURES:
                was, now = frozen.at[index, measure], current.at[index, measure]
                if was != now and not (math.isnan(was) and math.isnan(now)):
                    raise UserError(
                        f"{where}: {measure} is {float(now)!r}, frozen as {float(was)!r}" + advice
                    )


def freeze_reference(
    path: str | Path,
    axes: pd.DataFrame,
    scoring: Scoring,
    digests: Mapping[str, str],
    floors: Collection[str] = (),
) -> Reference:
    """Freeze a panel into ``path``; the reference is called by the name of the file.

    The file holds the measures of each encoder × data set × seed (the shortest decimals that give
    the same floats back), the anchors, weights and protocol version, the scores that follow, and
    ``digests``.

    Args:
        path: ``<name>.json``. A file that is there is kept if it says the same, never replaced.
        axes: from :func:`crsbench.score.axes_table`, every axis complete.
        scoring: anchors and weights that made ``axes``.
        digests: SHA-256 of what made the panel, by name.
        floors: encoders of ``axes`` to leave out.

    Raises:
        UserError: an axis is missing, a data set has fewer than two encoders, or ``path`` already
            holds another reference.
    """
    path = Path(path)
    panel = axes[~axes["encoder"].isin(list(floors))].reset_index(drop=True)
    scores = crs_table(panel, scoring)
    unscored = scores[scores["crs"].isna()]
    if len(unscored):
        first = unscored.iloc[0]
        raise UserError(
            f"{path.name}: cannot freeze {first['encoder']} on {first['dataset']}, it has no CRS "
            f"({first['missing']})"
        )
    content = {
        "scoring": scoring.to_json(),
        "panel": _panel_to_json(panel),
        "scores": _scores_by_cell(scores),
        "digests": dict(digests),
    }
    if path.exists() and read_json(path) != content:
        raise UserError(
            f"{path} is a frozen reference with other content: freeze under another name, or delete"
            " the file if nothing was published from it"
        )
    write_json(path, content)
    return load_reference(path)


def load_reference(path: str | Path) -> Reference:
    """Read a frozen reference and check that its published scores still follow from it.

    Raises:
        UserError: the file cannot be read, is not such a file, or this version of the code gives
            one of its scores another value.
    """
    path = Path(path)
    content = read_json(path)
    if set(content) != _KEYS:
        raise UserError(
            f"{path}: not a frozen reference, its keys must be {', '.join(sorted(_KEYS))} but are "
            f"{', '.join(sorted(content))}"
        )
    scoring = parse_scoring(content["scoring"], source=str(path))
    try:
        axes = finish_axes(_panel_from_json(content["panel"]), scoring)
        frozen = _flat(content["scores"])
        digests = {str(name): str(digest) for name, digest in content["digests"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the frozen reference is damaged ({error!r})") from error
    current = _flat(_scores_by_cell(crs_table(axes, scoring)))
    for key in sorted(frozen.keys() | current.keys()):
        if frozen.get(key) != current.get(key):
            raise UserError(
                f"{path}: the published score {key} is {frozen.get(key)!r} but follows as "
                f"{current.get(key)!r}: the file was edited, or the code computes scores otherwise"
            )
    return Reference(path.stem, scoring, axes, digests)


def _panel_to_json(axes: pd.DataFrame) -> dict[str, Any]:
    panel: dict[str, Any] = {}
    for row in axes[axes["seed"] != SEED_MEAN].to_dict("records"):
        cell = panel.setdefault(row["encoder"], {}).setdefault(row["dataset"], {})
        cell[str(row["seed"])] = {
            name: None if math.isnan(row[name]) else row[name] for name in MEASURES
        }
    return panel


def _panel_from_json(panel: Mapping[str, Any]) -> pd.DataFrame:
    records = [
        {"encoder": encoder, "dataset": dataset, "seed": int(seed), "missing": None}
        | {name: math.nan if measures[name] is None else float(measures[name]) for name in MEASURES}
        for encoder, datasets in panel.items()
        for dataset, seeds in datasets.items()
        for seed, measures in seeds.items()
    ]
    return pd.DataFrame(records)


def _scores_by_cell(scores: pd.DataFrame) -> dict[str, dict[str, float]]:
    by_cell: dict[str, dict[str, float]] = {}
    for row in scores.itertuples():
        by_cell.setdefault(row.encoder, {})[row.dataset] = row.crs
    return by_cell


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys, so that a difference can be named."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat
