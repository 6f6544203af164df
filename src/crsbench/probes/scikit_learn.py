"""The audit path: the protocol's fits by scikit-learn's `LogisticRegression`, one after another.

`probe.engine: scikit-learn` takes it in place of `crsbench.probes.logistic.LogisticPath`. Folds,
grid of C, floors and the choice of C stay; every fit and every out-of-fold log-loss is made here.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from crsbench.core.threads import use_one_thread
from crsbench.probes.fitted import ProbeSettings


class ScikitLearnPath:
    """L2 logistic regressions along the grid of C, with the fitted state of `LogisticPath`.

    A fit ends when no entry of the gradient of its objective, divided by the number of rows, is
    larger than `tolerance`. The time cap is looked at between fits: those that begin after it make
    one iteration each. `gradient_norm_` is not known and 0.
    """

    def __init__(self, task: str, settings: ProbeSettings) -> None:
        self.task, self.settings = task, settings

    def fit(self, features: np.ndarray, truth: np.ndarray, trained: np.ndarray) -> ScikitLearnPath:
        """Fit every C on each of W sets of rows.

        features : (n, d). truth : (n, K) of 0 and 1. trained : (n, W), or (n, W, K) for
        "multilabel", 1 for the rows of the set and 0 for others.
        """
        use_one_thread()
        deadline = time.monotonic() + self.settings.time_cap_seconds
        n_classes = truth.shape[1]
        trained, classes = _problems(truth, trained, self.task)
        n_sets, n_problems = trained.shape[1:]
        grid = n_sets, len(self.settings.c_grid)
        self.present_ = np.zeros((n_sets, n_classes), dtype=bool)
        self.coef_ = np.zeros((*grid, n_classes, features.shape[1]))
        self.intercept_ = np.zeros((*grid, n_classes))
        self.objective_ = np.full((*grid, n_problems), np.nan)
        self.gradient_norm_ = np.zeros(self.objective_.shape)
        self.n_iter_ = np.zeros(self.objective_.shape, dtype=int)
        self.converged_ = np.ones(self.objective_.shape, dtype=bool)
        self.capped_ = False
        for w, p in np.ndindex(n_sets, n_problems):
            rows = trained[:, w, p] > 0
            x, y = features[rows].astype(np.float64), classes[rows, p]
            present = np.unique(y)
            columns = present if self.task == "multiclass" else [p]
            self.present_[w, columns] = len(present) > 1 or self.task == "multiclass"
            for s, c in enumerate(self.settings.c_grid if len(present) > 1 else ()):
                self.capped_ |= time.monotonic() > deadline
                most = 1 if self.capped_ else self.settings.max_iterations
                model = _fitted(x, y, c, self.settings.tolerance, most)
                coef, intercept = model.coef_, model.intercept_
                # f(W, b) = Σ −ln p(y_i | x_i) + ‖W‖² / 2C
                losses = -model.predict_log_proba(x)[np.arange(len(y)), np.searchsorted(present, y)]
                self.objective_[w, s, p] = losses.sum() + np.square(coef).sum() / (2 * c)
                if len(columns) == 2:  # one binary logit w: the two classes have −w/2 and +w/2
                    coef, intercept = (np.concatenate([-a / 2, a / 2]) for a in (coef, intercept))
                self.coef_[w, s, columns], self.intercept_[w, s, columns] = coef, intercept
                self.n_iter_[w, s, p] = model.n_iter_.max()
                self.converged_[w, s, p] = model.n_iter_.max() < most
        return self

    def log_loss(self, features: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Weighted sum of the rows' log-losses (W, S, P) under each fit, 0 where there is none.

        Rows of a class that a set lacks must have weight 0 there.
        """
        weights, _ = _problems(truth, weights, self.task)
        losses = np.zeros(self.objective_.shape)
        for w, s in np.ndindex(losses.shape[:2]):
            logits = features @ self.coef_[w, s].T + self.intercept_[w, s]
            if self.task == "multiclass":
                logits[:, ~self.present_[w]] = -np.inf
                of_row = -log_softmax(logits, axis=1)[truth == 1][:, None]
            else:
                of_row = np.logaddexp(0.0, np.where(truth == 1, -logits, logits))
            losses[w, s] = np.where(weights[:, w] > 0, of_row, 0.0).sum(axis=0)
        return np.where(np.isnan(self.objective_), 0.0, losses)


def _problems(truth: np.ndarray, weights: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights (n, W, P) and classes (n, P): one problem of K classes, or K of two."""
    if task == "multiclass":
        return weights[..., None], truth.argmax(axis=1)[:, None]
    return weights, truth


def _fitted(
    x: np.ndarray, y: np.ndarray, c: float, tolerance: float, most: int
) -> LogisticRegression:
    model = LogisticRegression(C=c, tol=tolerance, max_iter=most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it stands in `converged_`
        return model.fit(x, y)
