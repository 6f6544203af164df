"""What the tests of subgroups and of shifts are worth: false alarms and power, on a known truth.

    python benchmarks/subgroups.py [--quick]

Simulated panels of one encoder: patients with one or two images, three classes, the columns sex,
age and hospital, nine tests each (three columns; AUROC, ECE, sensitivity). Counted over the panels:
how often a panel without any gap has one that is found, and how often a planted one is found. And,
at another hospital with and without a shift: how often the interval of the sensitivity and of the
conformal coverage that are lost there excludes 0. The last line is one JSON object.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from crsbench.studies.operating_points import Aim, operating_points_of
from crsbench.studies.selective_prediction import conformal_sets_of
from crsbench.studies.subgroups import SubgroupSettings, subgroups_of
from worlds.cells import SEPARATION, a_test_set, cell_of, drawn_cases, simulated_panel

SETTINGS = SubgroupSettings(("sex", "age", "hospital"), min_images=30, min_cases=10)
TARGETS = {"a": ["a"], "b": ["b"]}
AIM = Aim("sensitivity", 0.9)


def subgroup_panels(count: int, n: int, gap: float, broken: float, replicates: int) -> dict:
    """Shares over the panels; `gap` and `broken` as in `simulated_panel`."""
    found = []
    for number in range(count):
        cell = simulated_panel(number, n, gap, broken, replicates)
        found.append(subgroups_of(cell, SETTINGS, TARGETS, AIM).gaps)
    tests = [one for of_panel in found for one in of_panel]

    def share(column: str, metric: str) -> float:
        own = [one for one in tests if (one["column"], one["metric"]) == (column, metric)]
        return float(np.mean([bool(one["found"]) for one in own]))

    by_metric = {
        metric: float(np.mean([one["p"] < 0.05 for one in tests if one["metric"] == metric]))
        for metric in ("auroc", "ece", "sensitivity")
    }
    return {
        "panels_with_a_finding": float(np.mean([any(g["found"] for g in of) for of in found])),
        "single_tests_below_0.05": by_metric,
        "found_sex_auroc": share("sex", "auroc"),
        "found_age_ece": share("age", "ece"),
    }


def hospitals(count: int, n: int, separation: float, replicates: int) -> dict:
    """Shares of the panels in which the interval of what is lost on the shift target excludes 0."""
    lost = {"sensitivity": 0, "coverage": 0}
    for number in range(count):
        random = np.random.default_rng([7, number])
        calibration, shown = drawn_cases(random, n // 2)
        tests = {
            name: a_test_set(
                *drawn_cases(random, n, of, SEPARATION), replicates=replicates, key=name
            )
            for name, of in {"clean": SEPARATION, "elsewhere": separation}.items()
        }
        cell = cell_of(tests, [(calibration, shown[0])], targets=("elsewhere",))
        points = operating_points_of(cell, {"a": ["a"]}, AIM)
        for name, row in (
            ("sensitivity", points[1]),
            ("coverage", conformal_sets_of(cell, 0.1)[1]),
        ):
            lost[name] += row["lost_low"] > 0 or row["lost_high"] < 0
    return {name: times / count for name, times in lost.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    started = time.process_time()
    sizes, replicates = ([300], 200) if quick else ([300, 1000], 300)
    count, fewer = 200, 30 if quick else 200
    result: dict = {"panels": count, "panels_with_a_truth": fewer, "replicates": replicates}
    for n in sizes:
        result[f"{n}_images"] = {
            "nothing_planted": subgroup_panels(count, n, 0, 1, replicates),
            "auroc_gap": subgroup_panels(fewer, n, 0.5, 1, replicates),
            "calibration_break": subgroup_panels(fewer, n, 0, 3.0, replicates),
            "same_hospital": hospitals(count, n, SEPARATION, replicates),
            "other_hospital": hospitals(fewer, n, SEPARATION - 0.5, replicates),
        }
        for name, values in result[f"{n}_images"].items():
            print(f"{n} images, {name}: {values}")
    result["cpu_seconds"] = round(time.process_time() - started, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
