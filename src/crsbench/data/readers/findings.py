"""The fourteen findings of the CheXpert labeller, as CheXpert and MIMIC-CXR-JPG ship them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.config import DatasetEntry
from crsbench.data.readers.tables import column
from crsbench.errors import UserError

POSITIVE, NEGATIVE, UNCERTAIN, BLANK = ("1", "1.0"), ("0", "0.0"), ("-1", "-1.0"), ""


def read_findings(entry: DatasetEntry, table: pd.DataFrame, file: Path) -> np.ndarray:
    """(n, K) int8 of the entry's classes, each column taken by its name.

    A blank (not mentioned) is 0. An uncertain finding (-1) is 0 by default; the entry's `uncertain`
    says `zeros`, `ones`, or which for each label (a label that the map leaves out: zeros). Raises
    UserError on any other value.
    """
    return np.stack(
        [
            _finding(column(table, name, file), _uncertain_is_positive(entry, name), file)
            for name in entry.classes
        ],
        axis=1,
    )


def _uncertain_is_positive(entry: DatasetEntry, label: str) -> bool:
    rule = entry.spec.get("uncertain", "zeros")
    return (rule if isinstance(rule, str) else rule.get(label, "zeros")) == "ones"


def _finding(values: pd.Series, uncertain_is_positive: bool, file: Path) -> np.ndarray:
    odd = sorted(set(values) - {*POSITIVE, *NEGATIVE, *UNCERTAIN, BLANK})
    if odd:
        raise UserError(
            f"{file}: label column '{values.name}' has the value '{odd[0]}'; "
            "allowed: 1, 0, -1 and an empty cell."
        )
    positive = POSITIVE + (UNCERTAIN if uncertain_is_positive else ())
    return values.isin(positive).to_numpy(dtype=np.int8)
