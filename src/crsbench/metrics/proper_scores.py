"""Proper scores: the Brier score and the log-loss."""

import numpy as np
import numpy.typing as npt

from crsbench.metrics.arrays import FloatArray, Task, paired

LOG_LOSS_FLOOR = float(np.finfo(np.float64).eps)
"""Probabilities are clipped to [floor, 1 − floor] in the log-loss, as scikit-learn does."""


def brier_score(task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Brier score, 0 is best.

    Multi-class: mean over cases of Σ_k (p_k − y_k)², from 0 to 2 (Brier, 1950; twice the usual
    binary score when K = 2). Multi-label: the binary score (p − y)² of each label, from 0 to 1,
    then the mean over labels.

    (0.75 − 1)² + (0.25 − 0)² = 0.125 of one case; per label that is 0.0625 each.

    >>> brier_score("multiclass", [[1, 0]], [[0.75, 0.25]])
    0.125
    >>> brier_score("multilabel", [[1, 0]], [[0.75, 0.25]])
    0.0625
    """
    truth, probabilities = paired(truth, probabilities)
    squared = np.square(probabilities - truth)  # (n, K): (p_k − y_k)²
    return _mean_in_order(squared.sum(axis=1) if task == "multiclass" else squared.ravel())


def log_loss(task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Negative log-likelihood in nats, probabilities clipped to [ε, 1 − ε], ε = 2⁻⁵² ≈ 2.2e-16.

    Multi-class: mean over cases of −ln p of the true class. Multi-label: the binary log-loss of
    each label, then the mean over labels. One case predicted at 0 that happens costs 36 nats.

    −ln ½ = 0.693; of a certain prediction that is wrong, −ln ε = 52 ln 2:

    >>> round(log_loss("multiclass", [[1, 0]], [[0.5, 0.5]]), 3)
    0.693
    >>> round(log_loss("multiclass", [[1, 0]], [[0.0, 1.0]]), 3)
    36.044
    """
    truth, probabilities = paired(truth, probabilities)
    # (n, K): p of what happened to each label, p_k where y_k = 1, else 1 − p_k
    likelihood = np.where(truth == 1, probabilities, 1.0 - probabilities)
    if task == "multiclass":
        likelihood = likelihood[truth == 1]  # (n,): the true class alone
    return _mean_in_order(-np.log(np.clip(likelihood.ravel(), LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR)))


def _mean_in_order(values: FloatArray) -> float:
    """Mean whose bits do not depend on the order of the values (m,)."""
    return float(np.sort(values).mean())
