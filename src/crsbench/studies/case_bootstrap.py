"""The case-level bootstrap: how sure macro-AUROCs are, given the test cases there happen to be.

The seed-paired bootstrap varies training; this one varies the test set. Whole groups (patients,
lesions) are drawn, the same for all encoders and seeds, so differences of encoders are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from crsbench.evaluation.cases import TestedCases
from crsbench.metrics.discrimination import auroc_per_class, resampled_auroc
from crsbench.metrics.statistics import group_bootstrap, percentile_interval

CASE_COLUMNS = [
    "encoder", "dataset", "condition", "macro_auroc", "low", "high", "se", "n_cases", "n_groups",
    "replicates", "n_redrawn", "missing",
]  # fmt: skip
PAIR_COLUMNS = [
    "dataset", "condition", "encoder_a", "encoder_b", "difference", "low", "high", "separated",
]  # fmt: skip

FloatArray = npt.NDArray[np.float64]


def case_bootstrap(
    tested: Mapping[str, TestedCases],
    dataset: str,
    condition: str,
    replicates: int,
    level: float = 0.95,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Percentile intervals of the mean macro-AUROC over seeds, and of all differences.

    The macro-AUROC is over the classes that the whole test set defines; a resample that lacks the
    positives or the negatives of one of them is drawn anew and counted. Where nine of ten are such,
    there is no interval, and ``missing`` says so. A pair is ``separated`` if its interval of the
    difference excludes 0. Pairs are a before b in the alphabet.

    Args:
        tested: by encoder, all of the same cases, with what its seeds say.

    Returns:
        The rows of the tables ``case_bootstrap`` and ``case_bootstrap_pairs``.
    """
    encoders = sorted(tested)
    cases = [tested[name] for name in encoders]
    groups = cases[0].groups
    aurocs = auroc_per_class(cases[0].truth, cases[0].ranking[0])
    defined = np.flatnonzero(~np.isnan(aurocs))
    whole = _macro_aurocs(cases, defined, np.ones((1, len(groups)), np.int64))
    common = {"dataset": dataset, "condition": condition}
    counts = {"n_cases": len(groups), "n_groups": len(np.unique(groups))}
    try:
        resampled = group_bootstrap(
            groups,
            lambda weights: _macro_aurocs(cases, defined, weights),
            key=f"cases of {dataset} under {condition}",
            replicates=replicates,
        )
    except ValueError as error:  # a class too rare to be resampled
        rows = pd.DataFrame({"encoder": encoders, "macro_auroc": whole[0], "missing": str(error)})
        rows = rows.assign(**common, **counts, replicates=0)
        return _typed(rows, CASE_COLUMNS), _typed(pd.DataFrame(), PAIR_COLUMNS)
    low, high = percentile_interval(resampled.values, level)
    rows = pd.DataFrame({"encoder": encoders, "macro_auroc": whole[0], "low": low, "high": high})
    # Along rows in memory, so that an encoder's bits do not depend on who stands beside it.
    rows["se"] = np.ascontiguousarray(resampled.values.T).std(axis=1)
    rows = rows.assign(**common, **counts, replicates=replicates, n_redrawn=resampled.n_redrawn)
    records = []
    for a, b in combinations(range(len(encoders)), 2):
        low, high = percentile_interval(resampled.values[:, a] - resampled.values[:, b], level)
        pair = {"encoder_a": encoders[a], "encoder_b": encoders[b]}
        pair |= {"low": float(low), "high": float(high)}
        separated = bool(low > 0 or high < 0)
        records.append(pair | {"difference": whole[0, a] - whole[0, b], "separated": separated})
    pairs = pd.DataFrame(records).assign(**common)
    return _typed(rows, CASE_COLUMNS), _typed(pairs, PAIR_COLUMNS)


def _macro_aurocs(
    encoders: Sequence[TestedCases],
    defined: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
) -> FloatArray:
    """(r, E) mean over seeds of the macro-AUROC in each of r resamples; NaN where undefined."""
    columns = []
    for cases in encoders:
        truth = cases.truth[:, defined]
        of_seeds = [
            resampled_auroc(truth, scores[:, defined], weights).mean(axis=1)
            for scores in cases.ranking
        ]
        columns.append(sum(of_seeds) / len(of_seeds))
    return np.stack(columns, axis=1)


def _typed(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """All columns in their order and of one type, whatever is missing."""
    table = table.reindex(columns=columns)
    names = {"encoder", "encoder_a", "encoder_b", "dataset", "condition", "missing"}
    integers = {"n_cases", "n_groups", "replicates", "n_redrawn"}
    kinds = {name: "string" for name in columns if name in names}
    kinds |= {name: "Int64" for name in columns if name in integers}
    kinds |= {name: "boolean" for name in columns if name == "separated"}
    return table.astype({name: kinds.get(name, "float64") for name in columns})
