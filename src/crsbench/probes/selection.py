"""The probe of the protocol: C by grouped cross-validation, then a refit on all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crsbench.metrics.arrays import UNKNOWN
from crsbench.probes.fitted import FittedProbe, ProbeSettings, class_floors, default_c
from crsbench.probes.folds import folds_per_problem
from crsbench.probes.logistic import LogisticPath, check_features, check_truth

if TYPE_CHECKING:
    from crsbench.probes.scikit_learn import ScikitLearnPath

    Path = LogisticPath | ScikitLearnPath

# Out-of-fold losses closer than this share are one: they differ by the solver's tolerance only.
_TIE = 1e-5


def fit_probe(
    features: np.ndarray,
    truth: np.ndarray,
    groups: np.ndarray,
    task: str,
    settings: ProbeSettings | None = None,
) -> FittedProbe:
    """Fit the logistic probe on the given rows and nothing else.

    features : (n, d) float32, standardised by the caller. truth : (n, K) of 0 and 1, one-hot for
    "multiclass", multi-hot for "multilabel", where it may also be -1: unknown, so that the row
    counts for nothing in that label's folds, fits and floor. groups : (n,) strings or integers;
    rows of a group stay in one fold. Rows should come sorted by image id: another order moves the
    objectives by about the tolerance, the same order gives the same bits.

    C minimises the mean out-of-fold log-loss; ties go to the stronger regularisation. A multilabel
    probe chooses C per label, from folds of its own: the labels are separate binary problems, and
    a common C or common folds would let a rare label decide for the others. Where no two folds can
    be made C is the middle of the grid.

    A class without members is predicted at 1/(n + K), the others scaled by what is left; a label
    without positives or without negatives at (positives + 1)/(n + 2), Laplace's rule. Within a
    fold the same holds for what its training rows lack.

    Raises UserError for features that are not finite, ValueError for arguments that do not fit
    together.
    """
    settings = settings or ProbeSettings()
    features, truth, groups = np.asarray(features), np.asarray(truth), np.asarray(groups)
    check_features(features)
    known = (truth != UNKNOWN) | (task != "multilabel")
    truth = np.where(known, truth, 0)
    check_truth(truth, len(features), task)
    fold, n_folds = folds_per_problem(truth, known, groups, task, settings.folds)
    trained = _training_masks(fold, n_folds, known, task)
    path = _path(task, settings).fit(features, truth, trained)
    losses = _out_of_fold_log_loss(path, features, truth, known, trained, n_folds)
    return _fitted(path, losses, n_folds, truth, known, settings)


def _path(task: str, settings: ProbeSettings) -> Path:
    if settings.engine == "scikit-learn":
        from crsbench.probes.scikit_learn import ScikitLearnPath

        return ScikitLearnPath(task, settings)
    return LogisticPath(
        settings.c_grid,
        task,
        tolerance=settings.tolerance,
        max_iterations=settings.max_iterations,
        time_cap_seconds=settings.time_cap_seconds,
    )


def _training_masks(
    fold: np.ndarray, n_folds: np.ndarray, known: np.ndarray, task: str
) -> np.ndarray:
    """Weights (n, 1 + most folds[, K]): all known rows first, then all but each fold.

    A label with fewer folds than the others has masks of zeros at the end.
    """
    known = known[:, : fold.shape[1]]
    masks = np.empty((len(fold), 1 + n_folds.max(), fold.shape[1]), dtype=np.uint8)
    masks[:, 0] = known
    for held_out in range(n_folds.max()):
        masks[:, 1 + held_out] = known & (fold != held_out) & (held_out < n_folds)
    return masks[..., 0] if task == "multiclass" else masks


def _out_of_fold_log_loss(
    path: Path,
    features: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    trained: np.ndarray,
    n_folds: np.ndarray,
) -> np.ndarray:
    """Mean log-loss (P, S) of each known row under the fit that did not see it.

    NaN without folds.
    """
    held_out = trained[:, :1] - trained
    held_out[:, 0] = 0
    n_rows = known[:, : len(n_folds)].sum(0)
    if path.task == "multiclass":
        constant = _multiclass_floor_loss(truth, trained, held_out)
        fitted = truth.astype(np.uint8) @ path.present_.T.astype(np.uint8)
        held_out = held_out * fitted  # classes that the fold's training rows lack cost the floor
    else:
        held_out *= np.arange(1 + n_folds.max())[:, None] <= n_folds
        constant = _multilabel_floor_loss(truth, trained, held_out)
    # sum over folds (the weightings) of the held-out rows' losses (S, P), over the rows
    losses = path.log_loss(features, truth, held_out).sum(0).T + constant[:, None]
    return np.where(n_folds[:, None] > 0, losses / np.maximum(n_rows, 1)[:, None], np.nan)


def _multiclass_floor_loss(
    truth: np.ndarray, trained: np.ndarray, held_out: np.ndarray
) -> np.ndarray:
    """The part (1,) of the out-of-fold loss that is owed to classes absent from training folds."""
    loss = 0.0
    for train, test in zip(trained.T[1:], held_out.T[1:], strict=True):
        floors = class_floors(truth[train > 0].sum(0), int(train.sum()), "multiclass")
        held = truth[test > 0].sum(0)
        # A class k that is absent costs -ln floor_k; any other -ln p_k - ln(1 - sum of the floors),
        # of which the path's own loss has the first term.
        scaled = np.log1p(-np.nansum(floors))
        loss -= np.where(np.isnan(floors), scaled, np.log(floors)) @ held
    return np.array([loss])


def _multilabel_floor_loss(
    truth: np.ndarray, trained: np.ndarray, held_out: np.ndarray
) -> np.ndarray:
    """The part (K,) of the out-of-fold loss of folds whose training rows lack a value."""
    loss = np.zeros(truth.shape[1])
    for position in range(1, trained.shape[1]):
        train, test = trained[:, position], held_out[:, position]
        positives = (truth * test).sum(0, dtype=np.int64)
        negatives = test.sum(0, dtype=np.int64) - positives
        floors = class_floors(
            (truth * train).sum(0, dtype=np.int64), train.sum(0, dtype=np.int64), "multilabel"
        )
        # -(positives ln floor + negatives ln(1 - floor)); NaN, so nothing, where a label was fitted
        loss -= np.nan_to_num(positives * np.log(floors) + negatives * np.log1p(-floors))
    return loss


def _fitted(
    path: Path,
    losses: np.ndarray,
    n_folds: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    settings: ProbeSettings,
) -> FittedProbe:
    """The refit on all rows at the chosen C, with its record."""
    n_problems, n_classes = len(n_folds), truth.shape[1]
    chosen = np.array([_choose(loss, settings) for loss in losses])
    floors = class_floors(truth.sum(0, dtype=np.int64), known.sum(0), path.task)
    floor_classes = np.flatnonzero(~np.isnan(floors))
    problem = np.arange(n_problems)
    row = chosen[np.zeros(n_classes, dtype=int) if path.task == "multiclass" else problem]
    grid = np.asarray(settings.c_grid)
    fitted = ~np.isnan(path.objective_[0, chosen, problem])
    return FittedProbe(
        task=path.task,
        coef_=path.coef_[0, row, np.arange(n_classes)],
        intercept_=path.intercept_[0, row, np.arange(n_classes)],
        c_=np.where(fitted, grid[chosen], np.nan),
        c_grid_=grid,
        oof_log_loss_=losses,
        folds_=n_folds,
        n_train_=len(truth),
        n_iter_=path.n_iter_[0, chosen, problem],
        gradient_norm_=path.gradient_norm_[0, chosen, problem],
        objective_=path.objective_[0, chosen, problem],
        converged_=path.converged_[0, chosen, problem],
        capped_=path.capped_,
        floor_classes_=floor_classes,
        floor_probabilities_=floors[floor_classes],
    )


def _choose(losses: np.ndarray, settings: ProbeSettings) -> int:
    """Position in the grid of the smallest C whose loss is the least, to within a tie."""
    if np.isnan(losses).any():
        return settings.c_grid.index(default_c(settings.c_grid))
    return int(np.argmax(losses <= losses.min() * (1 + _TIE)))  # argmax: the first, so the smallest
