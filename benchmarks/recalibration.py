"""Speed of recalibration, and what its choices, levels and intervals are worth.

    python benchmarks/recalibration.py [--quick]

Synthetic cells of the published sizes (ISIC 2019: 8 classes, about 2,530 calibration and 5,070 test
images; APTOS 2019: 5 classes, 366 and 732) go through the job of the workflow, with 16 conditions
and the configured numbers of cases. From the CPU time of one cell follows that of 43 such cells on
two cores. With known truth are counted: how often the 95 % interval of an ECE holds the
population's, how far the level of perfect calibration is from simulation, and what ECE the chosen
method leaves beside the best and the worst of the four. The last line is one JSON object.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from crsbench.calibration import METHODS
from crsbench.calibration.cells import recalibrate_cell
from crsbench.calibration.external_predictions import ece_interval
from crsbench.calibration.likelihood import sigmoid, softmax
from crsbench.calibration.selection import brier_by_method, fit_all, least, out_of_fold
from crsbench.core.files import write_table
from crsbench.core.threads import use_one_thread
from crsbench.data.splits import write_split, write_test
from crsbench.evaluation.runs import CellFiles
from crsbench.features.store import FeatureWriter
from crsbench.metrics.calibration_error import multiclass_ece, reliability_bins
from crsbench.probes import FittedProbe

WIDTH = 1024
CONDITIONS = ["clean", *(f"jpeg-{number}" for number in range(1, 16))]
CASES = [50, 100, 200, 500, 1000, 2000]
SIZES = {"aptos2019": (3662, 5), "isic2019": (25331, 8)}
CELLS, SEEDS, CORES = 43, 5, 2


def write_cell(folder: Path, n: int, n_classes: int, n_seeds: int) -> CellFiles:
    """A cell of n images whose probe is too sure of itself, on disk as the workflow has it."""
    random = np.random.default_rng(0)
    logits = 1.5 * random.normal(size=(n, n_classes))
    cumulated = softmax(logits).cumsum(axis=1)
    truth = np.eye(n_classes, dtype=np.int8)[
        (cumulated < random.random((n, 1))).sum(axis=1).clip(max=n_classes - 1)
    ]
    ids = [f"i{number:06d}" for number in range(n)]
    frame = pd.DataFrame({"image_id": ids, "path": ids, "content_sha256": ids, "dropped": False})
    frame["group"] = [f"p{number // 2}" for number in range(n)]
    frame["labels"] = list(truth)
    classes = [f"c{k}" for k in range(n_classes)]
    metadata = {"dataset": "d", "task": "multiclass", "classes": classes, "group_namespace": "d"}
    manifest, test = folder / "manifest.parquet", folder / "test.parquet"
    write_table(manifest, frame, metadata)
    write_test(test, manifest, 0.2)
    tested = pd.read_parquet(test)["is_test"].to_numpy()
    probes, splits, features = {}, {}, {}
    for seed in range(n_seeds):
        splits[seed] = str(folder / f"seed{seed}.parquet")
        write_split(splits[seed], manifest, test, seed, [100], 0.125)
        probes[seed] = str(folder / f"probe{seed}.npz")
        coef = np.zeros((n_classes, WIDTH))
        coef[:, :n_classes] = (2.0 + 0.1 * seed) * np.eye(n_classes)
        one = np.ones(1)
        FittedProbe(
            *("multiclass", coef, np.zeros(n_classes), one, one, one[None], one.astype(int)),
            *(100, one.astype(int), one, one, one.astype(bool), False, np.zeros(0, int)),
            np.zeros(0),
        ).save(probes[seed])
    for place, condition in enumerate(CONDITIONS):
        features[condition] = str(folder / f"{condition}.arrow")
        with FeatureWriter(features[condition], {}) as writer:
            for row in range(n) if condition == "clean" else np.flatnonzero(tested):
                values = np.zeros(WIDTH, dtype=np.float32)
                values[:n_classes] = logits[row] * (1 + 0.05 * place)
                writer.append(ids[row], values)
    return CellFiles(str(manifest), splits, features, probes=probes)


def cell_seconds(dataset: str, n_seeds: int) -> float:
    """CPU seconds of one cell, without start and imports of the job."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_cell(Path(folder), *SIZES[dataset], n_seeds)
        start = time.process_time()
        recalibrate_cell(files, CASES)
        return time.process_time() - start


def interval_coverage(n_cases: int, sharpness: float, trials: int) -> float:
    """Share of 95 % intervals that hold the population's ECE; binary, bins of the population."""
    random = np.random.default_rng(n_cases)

    def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
        logits = random.normal(0, 1.5, (n, 1))
        return (random.random((n, 1)) < sigmoid(logits)).astype(int), sigmoid(sharpness * logits)

    truth, p = sample(2_000_000)
    population = float(reliability_bins(p, truth).error()[0])
    hits = 0
    for _ in range(trials):
        interval = ece_interval("multilabel", *sample(n_cases), np.arange(n_cases))
        hits += interval.low <= population <= interval.high
    return hits / trials


def chance_level(n_cases: int) -> dict[str, float]:
    """ECE of a perfectly calibrated model of four classes: by simulation and in closed form."""
    random = np.random.default_rng(n_cases)
    p = softmax(2 * random.normal(size=(n_cases, 4)))
    confidence = p.max(axis=1)
    drawn = [random.random(n_cases) < confidence for _ in range(400)]
    simulated = np.mean([reliability_bins(confidence, right).error() for right in drawn])
    stated = reliability_bins(confidence, drawn[0]).error_if_calibrated()
    return {"simulated": float(simulated), "stated": float(stated)}


def choice(n_calibration: int, trials: int) -> dict[str, float]:
    """Mean test ECE of what cross-validation chose, beside all four, on two kinds of fault."""
    found: dict[str, list[float]] = {name: [] for name in ("none", *METHODS, "chosen")}
    for trial in range(trials):
        random = np.random.default_rng(trial)
        logits = 1.5 * random.normal(size=(n_calibration + 5000, 5))
        cumulated = softmax(logits).cumsum(axis=1)
        drawn = (cumulated < random.random((len(logits), 1))).sum(axis=1).clip(max=4)
        truth = np.eye(5, dtype=np.int64)[drawn]
        # Odd trials: sure by a factor of two; even ones: a bias for some classes beside that.
        bias = np.array([1.0, 0.5, 0, 0, -1.0]) * (trial % 2)
        p = softmax(2 * logits + bias)
        known, tested = slice(0, n_calibration), slice(n_calibration, None)
        groups = np.arange(n_calibration)
        made = fit_all("multiclass", p[known], truth[known], groups)
        said = out_of_fold("multiclass", p[known], truth[known], groups)
        scores = brier_by_method("multiclass", said, truth[known])
        ece = {
            name: multiclass_ece(truth[tested], of.recalibrate(p[tested]))
            for name, of in made.items()
        }
        ece["none"] = multiclass_ece(truth[tested], p[tested])
        ece["chosen"] = ece[least({name: scores[name] for name in METHODS})]
        for name, value in ece.items():
            found[name].append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed of a cell, fewer trials")
    quick = parser.parse_args().quick
    use_one_thread()
    n_seeds = 1 if quick else SEEDS
    result: dict[str, object] = {
        "benchmark": "recalibration",
        "conditions": len(CONDITIONS),
        "cases": CASES,
        "seeds_measured": n_seeds,
    }
    for dataset, (n, n_classes) in SIZES.items():
        seconds = cell_seconds(dataset, n_seeds) * SEEDS / n_seeds
        result[dataset] = {
            "images": n,
            "classes": n_classes,
            "cpu_seconds_a_cell_of_5_seeds": seconds,
            "minutes_43_cells_2_cores": seconds * CELLS / CORES / 60,
        }
    trials = 30 if quick else 400
    for n_cases in (200, 1000):
        for sharpness in (1.0, 2.0):
            share = interval_coverage(n_cases, sharpness, trials)
            result[f"coverage_{n_cases}_cases_sharpness_{sharpness:g}"] = share
        result[f"chance_level_{n_cases}_cases"] = chance_level(n_cases)
    result["trials"] = trials
    for n_calibration in (366, 2533):
        result[f"ece_{n_calibration}_calibration_cases"] = choice(n_calibration, 2 if quick else 40)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
