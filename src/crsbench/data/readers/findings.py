"""The fourteen findings of the CheXpert labeller, as CheXpert and MIMIC-CXR-JPG ship them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.data.readers.tables import column
from crsbench.metrics.arrays import UNKNOWN

POSITIVE, NEGATIVE, UNCERTAIN, BLANK = ("1", "1.0"), ("0", "0.0"), ("-1", "-1.0"), ""


def read_findings(entry: DatasetEntry, table: pd.DataFrame, file: Path) -> np.ndarray:
    """(n, K) int8 of the entry's classes, each column taken by its name.

    A blank (not mentioned) is 0. An uncertain finding (-1) is 0 by default; the entry's `uncertain`
    says `zeros`, `ones`, `ignore` (unknown, -1), or which for each label (a label that the map
    leaves out: zeros). Raises UserError on any other value.
    """
    return np.stack(
        [
            _finding(column(table, name, file), _truth_of_uncertain(entry, name), file)
            for name in entry.classes
        ],
        axis=1,
    )


def _truth_of_uncertain(entry: DatasetEntry, label: str) -> int:
    rule = entry.spec.get("uncertain", "zeros")
    rule = rule if isinstance(rule, str) else rule.get(label, "zeros")
    return {"zeros": 0, "ones": 1, "ignore": UNKNOWN}[rule]


def _finding(values: pd.Series, uncertain: int, file: Path) -> np.ndarray:
    odd = sorted(set(values) - {*POSITIVE, *NEGATIVE, *UNCERTAIN, BLANK})
    if odd:
        raise UserError(
            f"{file}: label column '{values.name}' has the value '{odd[0]}'; "
            "allowed: 1, 0, -1 and an empty cell."
        )
    truth = values.isin(POSITIVE).to_numpy(dtype=np.int8)
    truth[values.isin(UNCERTAIN).to_numpy()] = uncertain
    return truth
