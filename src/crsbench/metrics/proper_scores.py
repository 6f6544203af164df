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
    """
    truth, probabilities = paired(truth, probabilities)
    squared = np.square(probabilities - truth)
    return _mean_in_order(squared.sum(axis=1) if task == "multiclass" else squared.ravel())


def log_loss(task: Task, truth: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Negative log-likelihood in nats, probabilities clipped to [ε, 1 − ε], ε = 2⁻⁵² ≈ 2.2e-16.

    Multi-class: mean over cases of −ln p of the true class. Multi-label: the binary log-loss of
    each label, then the mean over labels. One case predicted at 0 that happens costs 36 nats.
    """
    truth, probabilities = paired(truth, probabilities)
    likelihood = np.where(truth == 1, probabilities, 1.0 - probabilities)
    if task == "multiclass":
        likelihood = likelihood[truth == 1]
    return _mean_in_order(-np.log(np.clip(likelihood.ravel(), LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR)))


def _mean_in_order(values: FloatArray) -> float:
    return float(np.sort(values).mean())
