"""Time of the metrics against scikit-learn's on the same data in the same process.

    python benchmarks/metrics.py [--quick]

The last line is one JSON object: the sizes and, for macro-AUROC, scikit-learn's time over ours.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from crsbench.metrics.discrimination import auroc_per_class
from crsbench.metrics.run_metrics import run_metrics

PREVALENCES = np.array(
    [0.09, 0.05, 0.12, 0.47, 0.04, 0.25, 0.07, 0.03, 0.16, 0.09, 0.41, 0.02, 0.04, 0.51]
)
"""Of the 14 labels: rare to frequent, as in a chest radiograph data set."""


def best_times(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Shortest of several runs of each, in seconds; taking turns, all see the same load."""
    times = np.empty((repeats, len(functions)))
    for repeat, f in np.ndindex(times.shape):
        start = time.perf_counter()
        functions[f]()
        times[repeat, f] = time.perf_counter() - start
    return times.min(axis=0).tolist()


def multilabel(n: int, decimals: int | None, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Truth and probabilities (n, 14) that carry some signal; rounded, they have many ties."""
    truth = (rng.random((n, len(PREVALENCES))) < PREVALENCES).astype(np.int64)
    logits = rng.normal(size=truth.shape) + 1.2 * truth - 2.0
    probabilities = 1 / (1 + np.exp(-logits))
    return truth, probabilities if decimals is None else probabilities.round(decimals)


def auroc_ratio(n: int, decimals: int | None, repeats: int) -> dict[str, float]:
    truth, probabilities = multilabel(n, decimals, np.random.default_rng(0))
    ours, theirs, loop = best_times(
        [
            lambda: auroc_per_class(truth, probabilities),
            lambda: roc_auc_score(truth, probabilities, average=None),
            lambda: [roc_auc_score(t, p) for t, p in zip(truth.T, probabilities.T, strict=True)],
        ],
        repeats,
    )
    difference = np.abs(
        auroc_per_class(truth, probabilities) - roc_auc_score(truth, probabilities, average=None)
    ).max()
    return {
        "ours_ms": 1e3 * ours,
        "sklearn_ms": 1e3 * theirs,
        "sklearn_loop_ms": 1e3 * loop,
        "ratio": theirs / ours,
        "ratio_loop": loop / ours,
        "largest_difference": float(difference),
    }


def run_time_ms(n: int, n_classes: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(n_classes), n)
    truth = np.eye(n_classes, dtype=np.int64)[rng.integers(0, n_classes, n)]
    classes = [f"class {k}" for k in range(n_classes)]
    [seconds] = best_times(
        [lambda: run_metrics("multiclass", truth, probabilities, classes).to_json()], repeats
    )
    return 1e3 * seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    repeats = 20 if parser.parse_args().quick else 100
    n = 38_000
    result = {
        "benchmark": "metrics",
        "n": n,
        "labels": len(PREVALENCES),
        "repeats": repeats,
        "macro_auroc": auroc_ratio(n, None, repeats),
        "macro_auroc_ties": auroc_ratio(n, 2, repeats),
        "run_metrics_800x8_ms": run_time_ms(800, 8, 5 * repeats),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
