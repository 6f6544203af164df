"""Speed of the seed-paired bootstrap, and what its intervals and tiers are worth.

    python benchmarks/bootstrap.py [--quick]

Synthetic panels with known truth: each encoder × data set has true measures, each seed adds noise
that the encoders partly share. Counted over many panels: how often an interval holds the true value
(nominally 95 %), how often equal encoders end in one tier, and how often a clear winner is alone in
the first. The last line is one JSON object with all figures and sizes.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from crsbench.core.names import AGGREGATE
from crsbench.score import Scoring, crs_table, load_scoring, seed_bootstrap
from crsbench.score.axes import finish_axes

DATASETS = ("aptos2019", "chexpert", "isic2019")
SEED_SD = np.array([0.006, 0.008, 0.010, 0.006])
"""Standard deviation over seeds of macro-AUROC, ECE, retention and drop."""
SHARED = 0.5
"""Share of that variance that all encoders have in common, because they share the splits."""
PANEL_REPLICATES = 2000
"""Of each bootstrap in the loops over panels."""
TYPICAL = np.array([0.85, 0.08, 0.90, 0.05])


def noise(n_encoders: int, n_seeds: int, seed: int) -> np.ndarray:
    """Departures of single seeds from the true measures: (3, E, S, 4)."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(3, 1, n_seeds, 4))
    own = rng.normal(size=(3, n_encoders, n_seeds, 4))
    return (np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own) * SEED_SD


def axes_of(observed: np.ndarray, scoring: Scoring) -> pd.DataFrame:
    """Table of axes from macro-AUROC, ECE, retention and drop: (3, E, S, 4)."""
    records = []
    for d, e, s in np.ndindex(observed.shape[:3]):
        auroc, ece, retention, drop = (float(value) for value in observed[d, e, s])
        records.append(
            {"encoder": f"encoder{e:02d}", "dataset": DATASETS[d], "seed": s, "missing": None}
            | {"macro_auroc": auroc, "ece": ece, "retention": retention, "drop": drop}
            | {"mean_drop": drop, "worst_drop": drop, "shift_drop": np.nan}
        )
    return finish_axes(pd.DataFrame(records), scoring)


def panel(truth: np.ndarray, n_seeds: int, scoring: Scoring, seed: int) -> pd.DataFrame:
    """Table of axes of encoders with the true measures (3, E, 4), observed over some seeds."""
    return axes_of(truth[:, :, None] + noise(truth.shape[1], n_seeds, seed), scoring)


def spread_truth(n_encoders: int, seed: int) -> np.ndarray:
    """True measures of a panel of different encoders: (3, E, 4)."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(3, n_encoders, 4)) * np.array([0.04, 0.03, 0.03, 0.03])
    return TYPICAL + spread


def true_crs(truth: np.ndarray, scoring: Scoring) -> pd.Series:
    """Aggregate CRS at the true measures, by encoder."""
    table = crs_table(axes_of(truth[:, :, None], scoring), scoring)
    return table[table["dataset"] == AGGREGATE].set_index("encoder")["crs"]


def coverage(n_panels: int, n_encoders: int, n_seeds: int, scoring: Scoring) -> dict[str, float]:
    """Share of 95 % intervals of the aggregate that hold the true value."""
    hits: dict[str, list[float]] = {"score": [], "difference": [], "difference_student_t": []}
    factor = student_t.ppf(0.975, n_seeds - 1) * np.sqrt(n_seeds / (n_seeds - 1))
    for trial in range(n_panels):
        truth = spread_truth(n_encoders, seed=trial)
        crs = true_crs(truth, scoring)
        axes = panel(truth, n_seeds, scoring, seed=trial)
        result = seed_bootstrap(axes, scoring, replicates=PANEL_REPLICATES)
        table = result.table[result.table["dataset"] == AGGREGATE].set_index("encoder")
        hits["score"].append(((table["crs_low"] <= crs) & (crs <= table["crs_high"])).mean())
        pairs = result.pairs[result.pairs["dataset"] == AGGREGATE]
        true = crs[pairs["encoder_a"]].to_numpy() - crs[pairs["encoder_b"]].to_numpy()
        hits["difference"].append(((pairs["low"] <= true) & (true <= pairs["high"])).mean())
        error = (pairs["difference"] - true).abs()
        hits["difference_student_t"].append((error <= factor * pairs["se"]).mean())
    return {name: float(np.mean(shares)) for name, shares in hits.items()}


def one_tier_rate(n_panels: int, n_encoders: int, n_seeds: int, scoring: Scoring) -> float:
    """Share of panels of equal encoders that end in one tier."""
    truth = np.broadcast_to(TYPICAL, (3, n_encoders, 4))
    found = []
    for trial in range(n_panels):
        table = seed_bootstrap(
            panel(truth, n_seeds, scoring, trial), scoring, replicates=PANEL_REPLICATES
        ).table
        found.append(table.loc[table["dataset"] == AGGREGATE, "tier"].max() == 1)
    return float(np.mean(found))


def winner_rate(n_panels: int, n_encoders: int, n_seeds: int, scoring: Scoring) -> float:
    """Share of panels in which an encoder that is better on every axis is alone in tier 1."""
    truth = np.tile(TYPICAL, (3, n_encoders, 1))
    truth[:, 0] = TYPICAL + 5 * SEED_SD * np.array([1, -1, 1, -1])
    found = []
    for trial in range(n_panels):
        table = seed_bootstrap(
            panel(truth, n_seeds, scoring, trial), scoring, replicates=PANEL_REPLICATES
        ).table
        aggregate = table[table["dataset"] == AGGREGATE]
        found.append(aggregate.loc[aggregate["tier"] == 1, "encoder"].tolist() == ["encoder00"])
    return float(np.mean(found))


def seconds(n_encoders: int, n_seeds: int, scoring: Scoring) -> float:
    """Time of 10,000 replicates, 15 encoders and three data sets."""
    axes = panel(spread_truth(n_encoders, 0), n_seeds, scoring, 0)
    start = time.perf_counter()
    seed_bootstrap(axes, scoring)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer panels")
    quick = parser.parse_args().quick
    scoring = load_scoring(Path(__file__).parents[1] / "config" / "scoring.yaml")
    n_panels = 15 if quick else 500
    result: dict[str, object] = {
        "benchmark": "bootstrap",
        "encoders": 15,
        "datasets": 3,
        "replicates": 10_000,
        "seconds_5_seeds": seconds(15, 5, scoring),
        "seconds_20_seeds": seconds(15, 20, scoring),
        "panels": n_panels,
        "panel_replicates": PANEL_REPLICATES,
    }
    for n_seeds in (5, 20):
        result[f"coverage_{n_seeds}_seeds"] = coverage(n_panels, 15, n_seeds, scoring)
    for n_encoders in (2, 3, 5, 15):
        rate = one_tier_rate(n_panels, n_encoders, 5, scoring)
        result[f"one_tier_{n_encoders}_equal_encoders"] = rate
    result["clear_winner_alone_in_tier_1"] = winner_rate(n_panels, 15, 5, scoring)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
