"""The frozen reference: a panel, its anchors and its published scores in one JSON file.

A newcomer is scored against the file, so what was published does not change by one bit.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.score.axes import finish_axes
from crsbench.score.crs import crs_table
from crsbench.score.reference import Reference, flattened, measures_by_seed
from crsbench.score.scoring import MEASURES, Scoring, parse_scoring

_KEYS = {"scoring", "panel", "scores", "digests"}


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
        frozen = flattened(content["scores"])
        digests = {str(name): str(digest) for name, digest in content["digests"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the frozen reference is damaged ({error!r})") from error
    current = flattened(_scores_by_cell(crs_table(axes, scoring)))
    for key in sorted(frozen.keys() | current.keys()):
        if frozen.get(key) != current.get(key):
            raise UserError(
                f"{path}: the published score {key} is {frozen.get(key)!r} but follows as "
                f"{current.get(key)!r}: the file was edited, or the code computes scores otherwise"
            )
    return Reference(path.stem, scoring, axes, digests)


def _panel_to_json(axes: pd.DataFrame) -> dict[str, Any]:
    panel: dict[str, Any] = {}
    for (encoder, dataset, seed), values in measures_by_seed(axes).items():
        panel.setdefault(encoder, {}).setdefault(dataset, {})[str(seed)] = {
            name: None if math.isnan(value) else value
            for name, value in zip(MEASURES, values, strict=True)
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
    columns = (scores[name] for name in ("encoder", "dataset", "crs"))
    for encoder, dataset, crs in zip(*columns, strict=True):
        by_cell.setdefault(encoder, {})[dataset] = crs
    return by_cell
