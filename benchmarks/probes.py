"""The path solver against scikit-learn's loop, on the same features in the same process.

    python benchmarks/probes.py [--quick] [--shape NAME] [--threads N]

For each shape: the whole grid of C and all labels by `LogisticPath`, against one
`LogisticRegression` per C and label. scikit-learn's time is that of the fits made, scaled to the
number of fits in the loop where only a part is made. Objectives are evaluated in float64. The last
line is one JSON object with the sizes, the ratios and the share of the machine's matrix-product
rate, measured here on a block of the same features.
"""

import argparse
import itertools
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from crsbench.probes.fitted import ProbeSettings
from crsbench.probes.logistic import LogisticPath
from crsbench.probes.selection import fit_probe

GRID = ProbeSettings().c_grid
LESIONS = (0.18, 0.51, 0.13, 0.034, 0.104, 0.009, 0.01, 0.023)
GRADES = (0.49, 0.10, 0.27, 0.05, 0.09)
FINDINGS = (0.09, 0.05, 0.12, 0.47, 0.04, 0.25, 0.07, 0.03, 0.16, 0.09, 0.41, 0.02, 0.04, 0.51)


@dataclass(frozen=True)
class Shape:
    """frequencies: of the classes or labels. timed: the labels that scikit-learn is timed on."""

    task: str
    rows: int
    width: int
    frequencies: tuple[float, ...]
    timed: tuple[int, ...] = (0,)


FULL = {
    "isic": Shape("multiclass", 15_000, 768, LESIONS),
    "aptos": Shape("multiclass", 2_563, 768, GRADES),
    "chexpert": Shape("multilabel", 130_000, 768, FINDINGS, timed=(5, 11)),
}
QUICK = {
    "isic": Shape("multiclass", 1_500, 96, LESIONS),
    "aptos": Shape("multiclass", 600, 96, GRADES),
    "chexpert": Shape("multilabel", 10_000, 96, FINDINGS, timed=(5, 11)),
}
SMALL = Shape("multiclass", 300, 1280, LESIONS)


def problem(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features with a power-law spectrum, and truth that they explain in part."""
    rng = np.random.default_rng(0)
    n, d, k = shape.rows, shape.width, len(shape.frequencies)
    spectrum = np.arange(1, d + 1, dtype=np.float32) ** -0.5
    latent = rng.standard_normal((n, d), dtype=np.float32)
    score = latent @ (rng.standard_normal((d, k)) * spectrum[:, None]).astype(np.float32)
    score = 1.5 * score / score.std(0)
    frequencies = np.asarray(shape.frequencies)
    if shape.task == "multiclass":
        score += np.log(frequencies) + rng.gumbel(size=(n, k))
        truth = np.eye(k, dtype=np.int8)[score.argmax(1)]
    else:
        score += rng.logistic(size=(n, k))
        truth = (score > np.quantile(score, 1 - frequencies, axis=0).diagonal()).astype(np.int8)
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)
    features = (latent * spectrum) @ rotation
    features -= features.mean(0)
    features /= features.std(0)
    return features, truth


def objective(
    features: np.ndarray, target: np.ndarray, coef: np.ndarray, intercept: np.ndarray, c: float
) -> float:
    """scikit-learn's: binary for one row of coefficients, else softmax. In float64."""
    logits = np.concatenate(
        [block.astype(np.float64) @ coef.T for block in np.array_split(features, 32)]
    )
    logits += intercept
    if len(coef) == 1:
        losses = np.logaddexp(0.0, np.where(target == 1, -logits[:, 0], logits[:, 0]))
    else:
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(target)), target]
    return float(losses.sum() + np.square(coef, dtype=np.float64).sum() / (2 * c))


def seconds(function: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def peak_beyond(function: Callable[[], object]) -> tuple[int, object]:
    """Bytes by which the process's resident memory rose at most while the function ran."""

    def resident(which: str) -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(rf"{which}:\s+(\d+) kB", status)[1])

    Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
    before = resident("VmRSS")
    result = function()
    return resident("VmHWM") - before, result


def product_rate(features: np.ndarray, columns: int) -> float:
    """Floating-point operations per second of the two products that a pass is made of."""
    block = torch.from_numpy(features[: min(len(features), 8192)])
    weights = torch.randn(columns, block.shape[1])
    once = lambda: (weights @ block.T) @ block  # noqa: E731
    once()
    best = min(seconds(once)[0] for _ in range(10))
    return 4.0 * block.numel() * columns / best


def sklearn_fits(
    features: np.ndarray, truth: np.ndarray, shape: Shape, positions: Sequence[int], options: dict
) -> tuple[float, dict[tuple[int, int], float]]:
    """Mean seconds of a fit, and the objective of each: {(position of C, label): value}."""
    targets = {0: truth.argmax(1)} if shape.task == "multiclass" else dict(enumerate(truth.T))
    total, found = 0.0, {}
    for position, label in itertools.product(positions, shape.timed):
        model = LogisticRegression(C=GRID[position], max_iter=10_000, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a line search that ends at float32's rounding
            took, _ = seconds(lambda m=model, t=targets[label]: m.fit(features, t))
        total += took
        found[position, label] = objective(
            features, targets[label], model.coef_, model.intercept_, GRID[position]
        )
    return total / len(found), found


def compare(shape: Shape) -> dict[str, object]:
    features, truth = problem(shape)
    labels = 1 if shape.task == "multiclass" else truth.shape[1]
    rate = product_rate(features, len(GRID) * truth.shape[1])
    fit = lambda: LogisticPath(GRID, shape.task).fit(features, truth)  # noqa: E731
    memory, path = peak_beyond(fit)
    ours = min(seconds(fit)[0] for _ in range(2))
    outputs = truth.shape[1] if shape.task == "multiclass" else 1
    operations = 4.0 * features.size * outputs * path.n_iter_.sum()
    report = {
        **asdict(shape),
        "cs": len(GRID),
        "ours_s": ours,
        "passes": int(path.n_iter_.max()),
        "converged": bool(path.converged_.all()),
        "memory_over_features": 1 + memory / features.nbytes,
        "share_of_product_rate": operations / ours / rate,
        "product_gflops": rate / 1e9,
        "sklearn_fits_in_loop": len(GRID) * labels,
    }
    every = range(len(GRID))
    ways = {"default": ({}, every), "tol_1e-6": ({"tol": 1e-6}, every)}
    if shape.task == "multilabel":  # its Hessian is (outputs x features) square: for one output
        ways["newton_cholesky"] = ({"solver": "newton-cholesky", "tol": 1e-6}, [GRID.index(1.0)])
    for name, (options, positions) in ways.items():
        theirs, reference = sklearn_fits(features, truth, shape, positions, options)
        report[f"sklearn_{name}"] = {
            "seconds_per_fit": theirs,
            "fits_timed": len(reference),
            "ratio": theirs * len(GRID) * labels / ours,
            "objective_excess": max(
                _own_objective(path, features, truth, at) / value - 1
                for at, value in reference.items()
            ),
        }
    return report


def _own_objective(
    path: LogisticPath, features: np.ndarray, truth: np.ndarray, at: tuple[int, int]
) -> float:
    position, label = at
    coef, intercept = path.coef_[0, position], path.intercept_[0, position]
    if path.task == "multiclass":
        return objective(features, truth.argmax(1), coef, intercept, GRID[position])
    own = slice(label, label + 1)
    return objective(features, truth[:, label], coef[own], intercept[own], GRID[position])


def small_probe() -> dict[str, object]:
    """A whole `fit_probe` of a small labelled subset, on one thread."""
    features, truth = problem(SMALL)
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        fit = lambda: fit_probe(features, truth, np.arange(len(truth)), SMALL.task)  # noqa: E731
        fit()
        best = min(seconds(fit)[0] for _ in range(3))
    return {**asdict(SMALL), "cs": len(GRID), "folds": ProbeSettings().folds, "seconds": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, under 50 s on 2 cores")
    parser.add_argument("--shape", choices=list(FULL), help="this shape only")
    parser.add_argument("--threads", type=int, help="default: all cores, one if --quick")
    arguments = parser.parse_args()
    # At the quick sizes threads mostly wait for each other.
    arguments.threads = arguments.threads or (1 if arguments.quick else os.cpu_count())
    torch.set_num_threads(arguments.threads)
    result: dict[str, object] = {"quick": arguments.quick, "threads": arguments.threads}
    with threadpool_limits(limits=arguments.threads):
        for name, shape in (QUICK if arguments.quick else FULL).items():
            if arguments.shape in (None, name):
                result[name] = compare(shape)
                print(name, json.dumps(result[name]))
    result["small_probe"] = small_probe()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
