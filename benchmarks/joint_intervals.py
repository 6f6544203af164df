"""Coverage of the joint bootstrap in worlds of known truth.

A world draws a pool of training images and a test set anew, trains a nearest-mean probe of each
encoder for each seed (on 7/8 of the pool, and on nested shares of it) and tests it on clean and
degraded images. The truth is the mean over many worlds: so test error, training error and seed
error are all in the spread that the intervals must cover. Encoders share most of what makes a case
hard, as real ones do. All encoders of a world are exchangeable, so every separation is a false one.

    python benchmarks/joint_intervals.py [--quick] [--size aptos|isic|chexpert] [--worlds N]

prints, for each size, the share of worlds whose 95 % interval holds the truth (of measures, CRS and
its differences), and the share of worlds with any false separation, for the joint bootstrap and for
the seed-paired one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.calibration.likelihood import softmax
from crsbench.core.names import AGGREGATE
from crsbench.metrics.influence import macro_auroc_influence, run_ece_influence
from crsbench.metrics.statistics import draw_groups
from crsbench.score import axes_table, load_scoring, seed_bootstrap
from crsbench.score.axes import MeasurePlan
from crsbench.score.joint import AUROC, ECE, INTERVALS, Resamples, joint_bootstrap

SCORING = Path(__file__).parents[1] / "config" / "scoring.yaml"
SIZES = {  # pool of training images, test images, classes, features, distance of class means
    "aptos": (2930, 732, 5, 200, 0.11),
    "aptos-easy": (2930, 732, 5, 24, 0.4),
    "isic": (20265, 5066, 8, 64, 0.2),
    "chexpert": (152983, 38246, 5, 64, 0.2),
}
SHARES, NOISES = (5, 25), (0.5, 1.0, 2.0)
SHARED = 0.7
"""Share of a case's variation that all encoders see."""


def world(
    random: np.random.Generator, size: str, n_encoders: int, n_seeds: int, replicates: int
) -> tuple[pd.DataFrame, dict[tuple[str, str], Resamples]]:
    """The table of runs of a world, and its resamples."""
    pool, tested, n_classes, width, distance = SIZES[size]
    means = np.random.default_rng(0).normal(size=(n_classes, width)) * distance
    share = 0.5 ** np.arange(n_classes)
    labels = random.choice(n_classes, pool + tested, p=share / share.sum())
    truth = np.eye(n_classes, dtype=int)[labels[pool:]]
    common = random.normal(size=(pool + tested, width)).astype(np.float32)
    orders = [random.permutation(pool)[: pool * 7 // 8] for _ in range(n_seeds)]
    name = str(random.integers(2**62))
    weights = draw_groups(np.arange(tested).astype(str), name, replicates)[1:] - 1
    records, resamples = [], {}
    for encoder in (f"e{k}" for k in range(n_encoders)):
        own = random.normal(size=common.shape).astype(np.float32)
        seen = means[labels] + np.sqrt(SHARED) * common + np.sqrt(1 - SHARED) * own
        train, clean = seen[:pool], seen[pool:]
        conditions = {"clean": clean} | {
            f"noise-{k}": clean + noise * random.normal(size=clean.shape)
            for k, noise in enumerate(NOISES)
        }
        values, influences = [], []
        for seed, order in enumerate(orders):
            keys, of_seed, parts = [], [], []
            for percent in (100, *SHARES):
                rows = order[: len(order) * percent // 100]
                probe = _nearest_mean(train[rows], labels[rows], n_classes)
                for condition, images in conditions.items():
                    if percent < 100 and condition != "clean":
                        continue
                    scores = images @ probe[0].T + probe[1]
                    value, influence = macro_auroc_influence(truth, scores)
                    row = {"encoder": encoder, "dataset": "d", "seed": seed}
                    row |= {"condition": condition, "percent": percent, "macro_auroc": value}
                    keys.append((condition, percent, AUROC))
                    of_seed.append(value)
                    parts.append(influence)
                    ece = np.nan
                    if percent == 100 and condition == "clean":
                        ece, influence = run_ece_influence("multiclass", truth, softmax(scores))
                        keys.append((condition, percent, ECE))
                        of_seed.append(ece)
                        parts.append(influence)
                    records.append(row | {"ece": ece})
            values.append(of_seed)
            influences.append(np.stack(parts, axis=1))
        changes = weights @ np.concatenate(influences, axis=1) / tested
        shape = (len(weights), n_seeds, len(keys))
        resamples[encoder, "d"] = Resamples(
            keys, np.arange(n_seeds), np.array(values), changes.reshape(shape), tested, tested
        )
    return pd.DataFrame(records), resamples


def _nearest_mean(
    features: np.ndarray, labels: np.ndarray, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (K, d) and biases (K,) of a Gaussian classifier of unit covariance."""
    counts = np.bincount(labels, minlength=n_classes)
    sums = np.stack([features[labels == k].sum(axis=0) for k in range(n_classes)])
    means = sums / (counts + 4)[:, None]
    return means, np.log((counts + 1) / (len(labels) + n_classes)) - (means**2).sum(axis=1) / 2


def coverage(size: str, worlds: int, n_encoders: int, replicates: int) -> dict[str, object]:
    scoring = load_scoring(SCORING)
    random = np.random.default_rng(1)
    tables, pairs, by_seed = [], [], []
    for _ in range(worlds):
        runs, resamples = world(random, size, n_encoders, 5, replicates)
        axes = axes_table(runs, scoring, {})
        plans = {"d": MeasurePlan.of(runs, ())}
        found = joint_bootstrap(axes, resamples, plans, scoring)
        tables.append(found.table[found.table["dataset"] != AGGREGATE])
        pairs.append(found.pairs[found.pairs["dataset"] != AGGREGATE])
        of_seeds = seed_bootstrap(axes, scoring).pairs
        by_seed.append(of_seeds[of_seeds["dataset"] != AGGREGATE])
    table = pd.concat(tables)
    held = {
        name: float(table[f"{name}_low"].le(table[name].mean()).mul(
            table[f"{name}_high"].ge(table[name].mean())).mean())
        for name in INTERVALS
    }  # fmt: skip
    every = pd.concat(pairs)
    # Intervals of single differences: those of the max-t are simultaneous, and wider.
    alone = float((every["difference"].abs() <= 1.96 * every["se"]).mean())
    return {
        "held": held,
        "difference_held": alone,
        "any_false_separation": float(np.mean([of["separated"].any() for of in pairs])),
        "false_separations": float(every["separated"].mean()),
        "any_false_separation_by_seeds": float(np.mean([of["separated"].any() for of in by_seed])),
        "false_separations_by_seeds": float(pd.concat(by_seed)["separated"].mean()),
        "macro_auroc": float(table["macro_auroc"].mean()),
        "worlds": worlds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s: APTOS's size alone")
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--encoders", type=int, default=5)
    parser.add_argument("--replicates", type=int, default=1000)
    options = parser.parse_args()
    sizes = options.size or (["aptos"] if options.quick else list(SIZES))
    worlds, replicates = (12, 400) if options.quick else (options.worlds, options.replicates)
    found: dict[str, object] = {}
    for size in sizes:
        start = time.process_time()
        found[size] = coverage(size, worlds, options.encoders, replicates)
        print(size, round(time.process_time() - start, 1), "CPU-s", found[size], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
