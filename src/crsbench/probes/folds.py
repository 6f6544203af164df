"""Grouped, stratified folds for cross-validation. Only NumPy is needed here."""

from __future__ import annotations

import numpy as np

from crsbench.core.hashing import sha256_number


def assign_folds(classes: np.ndarray, groups: np.ndarray, folds: int) -> tuple[np.ndarray, int]:
    """Grouped, stratified folds: (n,) fold of each row, and how many folds there are.

    The number is `folds`, or fewer: the groups of the rarest class that spans two groups at least.
    (A class within one group cannot be split; it is held out once.) It is 0, with all rows in
    fold -1, unless two classes span two groups each.

    Groups are dealt, rarest class first and the largest group first, each to the fold with the
    fewest rows of that class, then the fewest rows. Ties between groups fall to the SHA-256 of
    their ids, so that the order of the rows is of no effect.

    Raises ValueError unless there is one group per row.
    """
    if np.shape(groups) != np.shape(classes):
        raise ValueError(f"groups have shape {np.shape(groups)}, not {np.shape(classes)}.")
    return _stratified(np.asarray(classes), *_numbered(groups), folds)


def folds_per_problem(
    truth: np.ndarray, known: np.ndarray, groups: np.ndarray, task: str, folds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fold of each row (n, P), -1 where its label is unknown, and number of folds (P,).

    P problems: one for "multiclass", one for each of the K labels of "multilabel". truth : (n, K)
    of 0 and 1; known : (n, K) mask, of which a multiclass task uses the first column.
    """
    if groups.shape != (len(truth),):
        raise ValueError(f"groups have shape {groups.shape}; ({len(truth)},) is needed.")
    problems = [truth.argmax(1)] if task == "multiclass" else list(truth.T)
    group_of_row, keys = _numbered(groups)
    fold, n_folds = np.full((len(truth), len(problems)), -1), np.zeros(len(problems), dtype=int)
    for p, classes in enumerate(problems):
        rows = known[:, p]
        fold[rows, p], n_folds[p] = _stratified(classes[rows], group_of_row[rows], keys, folds)
    return fold, n_folds


def _numbered(groups: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Number of each row's group, and the SHA-256 key of each group."""
    names, group_of_row = np.unique(groups, return_inverse=True)
    return group_of_row, [sha256_number(name) for name in names]


def _stratified(
    classes: np.ndarray, group_of_row: np.ndarray, keys: list[int], folds: int
) -> tuple[np.ndarray, int]:
    values, class_of_row = np.unique(classes, return_inverse=True)
    cells = np.bincount(
        group_of_row * len(values) + class_of_row, minlength=len(keys) * len(values)
    )
    counts = cells.reshape(len(keys), len(values))
    spans = (counts > 0).sum(0)
    if (spans >= 2).sum() < 2:
        return np.full(len(classes), -1), 0
    n_folds = int(min(folds, spans[spans >= 2].min()))
    return _deal(counts, spans, keys, n_folds)[group_of_row], n_folds


def _deal(counts: np.ndarray, spans: np.ndarray, keys: list[int], n_folds: int) -> np.ndarray:
    """Fold of each group; counts (groups, classes), spans (classes,), keys break ties."""
    rarity = np.where(counts > 0, spans, np.iinfo(np.int64).max)
    leading = rarity.argmin(1)  # the rarest class that the group holds
    members = counts[np.arange(len(counts)), leading]
    order = np.lexsort((np.array(keys, dtype=np.uint64), -members, leading, spans[leading]))
    in_fold = [[0] * n_folds for _ in spans]  # rows, by class
    rows = [0] * n_folds
    fold_of_group = np.empty(len(counts), dtype=np.int64)
    for group, lead, count in zip(
        order.tolist(), leading[order].tolist(), counts[order].tolist(), strict=True
    ):
        fold = min(zip(in_fold[lead], rows, range(n_folds), strict=True))[2]
        for by_fold, number in zip(in_fold, count, strict=True):
            by_fold[fold] += number
        rows[fold] += sum(count)
        fold_of_group[group] = fold
    return fold_of_group
