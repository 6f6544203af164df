"""SYNTHETIC cells whose truth is known: patients, subgroups, and probabilities from a model.

A case of class k has the evidence x = d·e_k + noise in K dimensions, so the probability of class k
is softmax(d·x)_k: exactly calibrated with the case's own separation d, and not with another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from crsbench.evaluation.cases import CellCases, TestedCases
from crsbench.metrics.statistics import draw_groups

CLASSES = ("a", "b", "c")
SEPARATION = 1.5


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (raised / raised.sum(axis=-1, keepdims=True)).astype(np.float32)


def drawn_cases(
    random: np.random.Generator,
    n: int,
    separation: np.ndarray | float = SEPARATION,
    displayed: np.ndarray | float | None = None,
    shares: tuple[float, ...] = (0.5, 0.3, 0.2),
    seeds: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Truth (n, 3) and probabilities (seeds, n, 3); seeds see the evidence with a little noise.

    separation: of each case; displayed: the separation that the probabilities believe in.
    """
    separation = np.broadcast_to(separation, n)[:, None]
    believed = separation if displayed is None else np.broadcast_to(displayed, n)[:, None]
    truth = np.eye(3, dtype=np.int8)[random.choice(3, n, p=shares)]
    evidence = separation * truth + random.normal(size=(n, 3))
    jitter = 0.1 * random.normal(size=(seeds, n, 3)) if seeds > 1 else np.zeros((1, n, 3))
    return truth, softmax(believed * (evidence + jitter))


def a_test_set(
    truth: np.ndarray,
    probabilities: np.ndarray,
    subgroups: Mapping[str, object] | None = None,
    *,
    groups: np.ndarray | None = None,
    classes: tuple[str, ...] = CLASSES,
    replicates: int = 200,
    key: str = "test",
) -> TestedCases:
    """A test set; every case is a patient unless `groups` says otherwise."""
    groups = np.array([f"p{i:05d}" for i in range(len(truth))]) if groups is None else groups
    columns = pd.DataFrame(subgroups or {}, index=range(len(truth)))
    weights = draw_groups(groups, key, replicates)
    cases = some_cases(truth, probabilities, classes, groups=groups)
    return replace(cases, subgroups=columns, weights=weights)


def some_cases(
    truth: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str] = CLASSES,
    *,
    groups: np.ndarray | None = None,
    shared: Sequence[int] | None = None,
) -> TestedCases:
    """Cases of `classes`; of a model that has others too these are its columns `shared`."""
    ids = np.array([f"i{i:05d}" for i in range(len(truth))])
    task = "multiclass" if (truth.sum(axis=1) == 1).all() else "multilabel"
    columns = np.arange(len(classes)) if shared is None else np.array(shared)
    groups = ids if groups is None else groups
    return TestedCases(task, tuple(classes), columns, ids, groups, truth, probabilities)


def cell_of(
    tests: Mapping[str, TestedCases],
    calibration: list[tuple[np.ndarray, np.ndarray]],
    *,
    task: str = "multiclass",
    classes: tuple[str, ...] = CLASSES,
    targets: tuple[str, ...] = (),
) -> CellCases:
    sets = [replace(some_cases(*of_seed, classes), task=task) for of_seed in calibration]
    tests = {name: replace(test, task=task) for name, test in tests.items()}
    return CellCases("e", "d", task, classes, sets, tests, frozenset(targets))


def simulated_panel(
    number: int, n: int, gap: float, broken: float, replicates: int = 200
) -> CellCases:
    """One simulated test set of patients with one or two images, with three subgroup columns.

    gap: what the women's separation lacks, with probabilities that know of it; broken: the factor
    by which the probabilities shown for the oldest exaggerate. `hospital` has nothing to do with
    anything. 0 and 1 plant nothing.
    """
    random = np.random.default_rng([2608, number])
    patient = np.repeat(np.arange(n), random.integers(1, 3, n))[:n]
    sex = np.array(["f", "m"])[random.integers(0, 2, n)][patient]
    age = np.array(["young", "middle", "old"])[random.integers(0, 3, n)][patient]
    hospital = np.array(["north", "south"])[random.integers(0, 2, n)][patient]
    separation = np.where(sex == "f", SEPARATION - gap, SEPARATION)
    displayed = separation * np.where(age == "old", broken, 1.0)
    truth, probabilities = drawn_cases(random, n, separation, displayed)
    test = a_test_set(
        truth,
        probabilities,
        {"sex": sex, "age": age, "hospital": hospital},
        groups=np.array([f"p{i:05d}" for i in patient]),
        replicates=replicates,
        key=f"panel {number}",
    )
    calibration, of_seeds = drawn_cases(random, 300)
    return cell_of({"clean": test}, [(calibration, of_seeds[0])])
