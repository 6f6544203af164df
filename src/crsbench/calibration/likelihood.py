"""Penalised likelihoods of the calibration maps, and Newton's method that minimises them.

All objectives are sums over cases of the negative log-likelihood in nats, plus a penalty. They are
convex; value, gradient and Hessian are exact, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.lapack import dposv
from scipy.optimize import brentq

from crsbench.metrics.arrays import FloatArray, IntArray

Objective = Callable[[FloatArray], tuple[float, FloatArray, FloatArray]]
"""From parameters (m,) to value, gradient (m,) and Hessian (m, m)."""

RIDGE = 0.01
"""Weight of ½‖θ − identity‖², in cases: a hundredth of one. It keeps a map finite where a class is
absent or perfectly separated, and is not felt elsewhere."""

_MAX_ITERATIONS = 200


def minimise(objective: Objective, start: FloatArray, tolerance: float = 1e-9) -> FloatArray:
    """Newton's method with step halving on a strictly convex objective.

    tolerance: it ends when Newton's model expects a smaller decrease, in nats over all cases; the
    last step is taken.

    Raises FloatingPointError when the Hessian is not positive definite in float64 or the iterations
    run out: neither happens to finite data.

    (θ − 3)² from θ = 0 in one step:

    >>> def parabola(theta):
    ...     return float((theta[0] - 3) ** 2), 2 * (theta - 3), np.array([[2.0]])
    >>> minimise(parabola, np.zeros(1)).tolist()
    [3.0]
    """
    theta = start
    value, gradient, hessian = objective(theta)
    for _ in range(_MAX_ITERATIONS):
        _, step, failed = dposv(hessian, gradient)  # H s = g by Cholesky's factors
        if failed:
            raise FloatingPointError("a Hessian of a likelihood is not positive definite")
        decrease = float(gradient @ step) / 2  # f(θ) − f(θ − s) = g^T s / 2 in the quadratic model
        if decrease < tolerance:
            last: FloatArray = theta - step
            return last
        scale = 1.0
        while True:
            trial = theta - scale * step
            found = objective(trial)
            # Armijo: f(θ − t s) ≤ f(θ) − 0.1 t · g^T s / 2
            if found[0] <= value - 0.1 * scale * decrease:
                break
            scale /= 2
            if scale < 1e-10:  # rounding: no smaller value can be distinguished from this one
                return theta
        theta, (value, gradient, hessian) = trial, found
    raise FloatingPointError(f"Newton's method did not converge, decrease {decrease:g}")


def binary_objective(
    design: FloatArray, truth: FloatArray, centre: FloatArray, ridge: FloatArray
) -> Objective:
    """Logistic likelihood of truth (n,) with the logit design (n, m) @ θ.

    Penalty: ½ Σ ridge · (θ − centre)².
    """

    def objective(theta: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        logit = design @ theta
        probability = sigmoid(logit)
        away = theta - centre
        # −ln of the probability of what happened: ln(1 + e^−z) if y = 1, ln(1 + e^z) if y = 0
        loss = np.logaddexp(0.0, np.where(truth == 1, -logit, logit)).sum()
        # X^T (p − y) + λ (θ − centre), and X^T diag(p (1 − p)) X + diag(λ), with λ the ridge
        gradient = design.T @ (probability - truth) + ridge * away
        weighted = design * (probability * (1 - probability))[:, None]
        hessian = design.T @ weighted + np.diag(ridge)
        return float(loss + 0.5 * (ridge * away) @ away), gradient, hessian

    return objective


def vector_objective(logits: FloatArray, truth: FloatArray) -> Objective:
    """Multinomial likelihood of truth (n, K) with logits w_k · z_k + b_k; θ is (w, b), (2K,).

    Penalty: the weak ridge towards w = 1, b = 0, which also fixes the shift that b leaves open.
    """
    n_classes = logits.shape[1]
    centre = np.repeat([1.0, 0.0], n_classes)

    def objective(theta: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        weight, bias = theta[:n_classes], theta[n_classes:]
        probability, loss = _softmax_and_loss(logits * weight + bias, truth)
        residual = probability - truth
        away = theta - centre
        # By w_k Σ_i z_ik (p_ik − y_ik), by b_k Σ_i (p_ik − y_ik).
        gradient = np.concatenate([(logits * residual).sum(0), residual.sum(0)])
        by_class = np.concatenate([logits * probability, probability], axis=1)
        # With a_k either z_k (for w_k) or 1 (for b_k), the second derivatives are
        # Σ_i a_ik a_il (p_ik [k = l] − p_ik p_il): the products first, then the terms of k = l.
        hessian = -by_class.T @ by_class
        k = np.arange(n_classes)
        hessian[k, k] += (logits**2 * probability).sum(0)
        cross = (logits * probability).sum(0)
        hessian[k, k + n_classes] += cross
        hessian[k + n_classes, k] += cross
        hessian[k + n_classes, k + n_classes] += probability.sum(0)
        hessian[np.diag_indices_from(hessian)] += RIDGE
        return loss + 0.5 * RIDGE * float(away @ away), gradient + RIDGE * away, hessian

    return objective


class DirichletLikelihood:
    """Multinomial likelihood of truth (n, K) with logits W · ln p + b.

    θ is (K · (K + 1),): the rows of W, each followed by its intercept.
    """

    def __init__(self, logs: FloatArray, truth: FloatArray) -> None:
        """logs: (n, K), ln p."""
        n, self.n_classes = logs.shape
        self._truth = truth
        self._design = np.concatenate([logs, np.ones((n, 1))], axis=1)
        # With x = (ln p, 1), the second derivative by W_ka and W_lb is
        # Σ_i x_ia x_ib (p_ik [k = l] − p_ik p_il): sums over cases of a weight by class pair times
        # a product of two columns of the design; the products are the same at every step.
        first, second = np.triu_indices(self.n_classes + 1)
        self._products = self._design[:, first] * self._design[:, second]
        self._first, self._second = np.triu_indices(self.n_classes)
        self._column_pair = _pair_numbers(self.n_classes + 1)
        self._class_pair = _pair_numbers(self.n_classes)

    @property
    def identity(self) -> FloatArray:
        return np.eye(self.n_classes, self.n_classes + 1).ravel()

    def penalised(self, off_diagonal: float, intercept: float) -> Objective:
        """With the penalty of Kull et al. (NeurIPS 2019), "ODIR", on the mean over cases:

        off_diagonal / (K (K − 1)) · Σ_{i≠j} w_ij² + intercept / K · Σ b_j²

        and the weak ridge towards the identity, since ODIR leaves the diagonal free.
        """
        k = self.n_classes
        # ½ r w² with r = 2 n λ / (K (K − 1)) is n times λ / (K (K − 1)) · w².
        ridge = np.full((k, k + 1), 2 * len(self._truth) * off_diagonal / (k * (k - 1)))
        ridge[:, k] = 2 * len(self._truth) * intercept / k
        ridge[np.arange(k), np.arange(k)] = 0.0
        ridge = ridge.ravel() + RIDGE
        return lambda theta: self._evaluate(theta, ridge)

    def _evaluate(
        self, theta: FloatArray, ridge: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        k, size = self.n_classes, theta.size
        weights = theta.reshape(k, k + 1)
        probability, loss = _softmax_and_loss(self._design @ weights.T, self._truth)
        away = theta - self.identity
        # By W_ka Σ_i (p_ik − y_ik) x_ia + r (θ − identity).
        gradient = ((probability - self._truth).T @ self._design).ravel() + ridge * away
        by_class = np.ascontiguousarray(probability.T)
        # (pairs k ≤ l, n): p_k [k = l] − p_k p_l
        by_pair = by_class[self._first]
        by_pair *= -by_class[self._second]
        by_pair[self._first == self._second] += by_class
        # (class pairs, column pairs) to (K, K, K + 1, K + 1), then rows (k, a) and columns (l, b)
        blocks = (by_pair @ self._products)[self._class_pair][:, :, self._column_pair]
        hessian = blocks.transpose(0, 2, 1, 3).reshape(size, size)
        hessian[np.diag_indices(size)] += ridge
        return loss + 0.5 * float((ridge * away) @ away), gradient, hessian


def inverse_temperature(
    logits: FloatArray, truth: FloatArray, bracket: tuple[float, float]
) -> float:
    """The β in the bracket for which β · logits are likeliest.

    logits: (n, K) and truth (n, K) one-hot, or logits (n,) and truth (n,) of one label. The
    derivative rises in β, so that its root is the optimum; without a root the nearer end is. It is
    1 where the logits say nothing, so that no β is better than another.

    Three of four cases with the logit ln 9 hold: sigmoid(β ln 9) = ¾ = 3 / (1 + 3), so β = ½.

    >>> logits, truth = np.full(4, np.log(9)), np.array([1.0, 1, 1, 0])
    >>> round(inverse_temperature(logits, truth, (0.01, 100)), 9)
    0.5
    """
    if logits.ndim == 2:
        logits = logits - logits.mean(axis=1, keepdims=True)

    def slope(beta: float) -> float:
        # d/dβ of the negative log-likelihood: Σ_i Σ_k (p_ik(β) − y_ik) z_ik
        if logits.ndim == 1:
            return float((sigmoid(beta * logits) - truth) @ logits)
        return float(((softmax(beta * logits) - truth) * logits).sum())

    low, high = slope(bracket[0]), slope(bracket[1])
    if high - low <= 1e-12 * len(logits):
        return 1.0
    if low >= 0:
        return bracket[0]
    if high <= 0:
        return bracket[1]
    return float(brentq(slope, *bracket, xtol=1e-12, rtol=1e-12))


def sigmoid(logit: FloatArray) -> FloatArray:
    """1 / (1 + e^−z), as e^(−ln(1 + e^−z)), which overflows for no z.

    >>> sigmoid(np.array([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """
    return np.exp(-np.logaddexp(0.0, -logit))


def softmax(logits: FloatArray) -> FloatArray:
    """Rows (n, K) of probabilities, e^{z_k} / Σ_l e^{z_l}; less the largest none overflows.

    >>> softmax(np.array([[1000.0, 1000.0]])).tolist()
    [[0.5, 0.5]]
    """
    odds: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    return odds


def _softmax_and_loss(logits: FloatArray, truth: FloatArray) -> tuple[FloatArray, float]:
    """Probabilities (n, K), and −Σ_i ln p_i,true = Σ_i (ln Σ_k e^{z_ik} − z_i,true)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=1)
    return odds / total[:, None], float(np.log(total).sum() - (shifted * truth).sum())


def _pair_numbers(size: int) -> IntArray:
    """(size, size): the position of each unordered pair among the upper triangle's."""
    numbers = np.zeros((size, size), dtype=np.int64)
    first, second = np.triu_indices(size)
    numbers[first, second] = numbers[second, first] = np.arange(len(first))
    return numbers
