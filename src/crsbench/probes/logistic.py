"""L2 logistic regression for a whole grid of C, every fold and every label in one optimisation.

The objective of each problem (one weighting of the rows, one C and, for multi-label, one label)
is that of `sklearn.linear_model.LogisticRegression`:

    f(W, b) = sum_i s_i loss(y_i, W x_i + b) + ||W||^2 / (2 C),    the intercept b not penalised.

All problems share the feature matrix, so each pass reads it once, a block of rows at a time, and
multiplies it by the columns of every problem that has not converged.

Method: L-BFGS (Nocedal and Wright, Numerical Optimization, 2nd ed., algorithm 7.4) in the
eigenbasis of the centred features. There the Hessian is close to e_j B + 1/C in direction j, where
e_j is the mean square of the features along it and B = sum_i s_i (diag(p_i) - p_i p_i^T) couples
the classes; its inverse at the present point is the initial metric of each step. Every problem
keeps its own step length: a pass evaluates one trial point per problem, whatever stage its line
search is in.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from crsbench.core.errors import UserError

_HISTORY = 12
_SUFFICIENT_DECREASE = 1e-4
_SMALLEST_STEP = 1e-8
_BLOCK_LOGITS = 1 << 18  # logits held at once, so that a block stays in the processor's cache
_DOUBLE = 1 << 20  # numbers in the rotated matrix: up to here it is float64
_ROTATED = 1 << 23  # numbers in the rotated matrix: up to here it is held, else the features are
_ROWS_PER_DIRECTION = 16  # that the eigenbasis is found from
_ABSENT = -1e30  # logit of a class without members: its probability is exactly 0, never NaN
_RELATIVE_ROUNDING = {torch.float32: 2e-7, torch.float64: 1e-13}  # of an objective


class LogisticPath:
    """L2 logistic regressions along a grid of C, for several weightings of the rows at once.

    Parameters
    ----------
    c_grid : inverse regularisation strengths, positive, as in scikit-learn.
    task : "multiclass" (multinomial; with two classes one binary logit, as in scikit-learn) or
        "multilabel" (an independent binary problem per label).
    tolerance : a problem has converged when the expected decrease of its objective, half of
        gradient^T H gradient with H the L-BFGS metric, is at most this share of the objective.
        For standardised features and C up to 10 the objective was then, in trials, a few tolerances
        above its least, fifty at worst, or 1e-7 of itself where float32 rounds; at C of 1000 and
        more, almost separable rows can leave the expectation thousands of times too small.
    max_iterations : most passes over the features.
    time_cap_seconds : wall time after which the optimisation stops where it stands.
    precision : "float32" or "float64", of the passes over the feature matrix. Small problems
        (n * min(n, d) up to a million) always use float64; sums over blocks always do.
    device : "cpu" or a CUDA device.

    Fitted state, with W weightings, S values of C, K classes or labels, d features and
    P = 1 (multiclass) or K (multilabel) problems per weighting and C:

    coef_ (W, S, K, d), intercept_ (W, S, K).
    present_ (W, K): whether the class has members, or the label both values. Coefficients of
        others are zero, and a problem with a single class is not fitted.
    objective_, gradient_norm_, n_iter_, converged_ (W, S, P): the objective, the Euclidean norm of
        its gradient (for centred features), passes made, and whether the tolerance was met.
        NaN, 0, 0 and True for a problem that is not fitted.
    capped_ : whether the time cap ended the optimisation.

    The answer is bit-identical for equal input, thread count and machine. Another order of the
    rows or number of threads moves an objective by about `tolerance` times itself.
    """

    objective_: np.ndarray
    gradient_norm_: np.ndarray
    n_iter_: np.ndarray
    converged_: np.ndarray

    def __init__(
        self,
        c_grid: Sequence[float],
        task: str,
        tolerance: float = 1e-8,
        max_iterations: int = 500,
        time_cap_seconds: float = float("inf"),
        precision: str = "float32",
        device: str = "cpu",
    ) -> None:
        self.c_grid = c_grid
        self.task = task
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self.time_cap_seconds = time_cap_seconds
        self.precision = precision
        self.device = device

    def fit(
        self, features: np.ndarray, truth: np.ndarray, weights: np.ndarray | None = None
    ) -> LogisticPath:
        """Fit every problem.

        features : (n, d) floats. truth : (n, K) of 0 and 1, one-hot for "multiclass".
        weights : (n,), (n, W) or, for "multilabel" only, (n, W, K); non-negative; default ones.

        Raises UserError for features that are not finite and ValueError for arguments that do not
        fit together.
        """
        deadline = time.monotonic() + self.time_cap_seconds
        grid = _checked_parameters(self)
        features, truth, weights = _checked_arrays(features, truth, weights, self.task)
        space = _Space.rotated_to(features, self.precision, self.device)
        data = _Data(space, truth, weights, self.task)
        self.present_ = data.present
        problems = data.problems(grid, self.present_)
        descent = _Descent(data, problems)
        descent.run(self.tolerance, self.max_iterations, deadline)
        self._store(space, problems, descent)
        return self

    def log_loss(self, features: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Weighted sum of the rows' log-losses (W, S, P) under each fitted problem.

        Arguments as in `fit`, with the same W. A problem that is not fitted counts 0. Rows of a
        class that a weighting did not fit must have weight 0 there.
        """
        features, truth, weights = _checked_arrays(features, truth, weights, self.task)
        data = _Data(
            _Space.as_given(features, self.precision, self.device), truth, weights, self.task
        )
        problems = data.problems(np.asarray(self.c_grid, dtype=np.float64), self.present_)
        weighting, strength, label = (part.cpu().numpy() for part in problems.index)
        theta = np.concatenate([self.coef_, self.intercept_[..., None]], axis=-1)
        if self.task == "multiclass":
            theta = theta[weighting, strength]
        else:
            theta = theta[weighting, strength, label][:, None]
        losses = np.zeros(self.objective_.shape)
        if len(weighting):
            at = torch.from_numpy(theta).to(self.device)
            losses[weighting, strength, label] = data.log_loss(problems, at).cpu().numpy()
        return losses

    def _store(self, space: _Space, problems: _Problems, descent: _Descent) -> None:
        n_weightings, n_classes = self.present_.shape
        grid_shape = (n_weightings, len(self.c_grid))
        weighting, strength, label = (part.cpu().numpy() for part in problems.index)
        coef, intercept = space.original_coefficients(descent.final_theta)
        self.coef_ = np.zeros((*grid_shape, n_classes, coef.shape[-1]))
        self.intercept_ = np.zeros((*grid_shape, n_classes))
        if self.task == "multiclass":
            present = self.present_[weighting]
            self.coef_[weighting, strength] = np.where(present[..., None], coef, 0.0)
            self.intercept_[weighting, strength] = np.where(present, intercept, 0.0)
        else:
            self.coef_[weighting, strength, label] = coef[:, 0]
            self.intercept_[weighting, strength, label] = intercept[:, 0]
        shape = (*grid_shape, 1 if self.task == "multiclass" else n_classes)
        for name, unfitted in [
            ("objective", np.nan),
            ("gradient_norm", 0.0),
            ("n_iter", 0),
            ("converged", True),
        ]:
            values = np.full(shape, unfitted)
            values[weighting, strength, label] = getattr(descent, f"final_{name}").cpu().numpy()
            setattr(self, f"{name}_", values)
        self.capped_ = descent.capped


@dataclass(frozen=True)
class _Space:
    """The feature matrix and the coordinates in which the problems are solved.

    rows : (n, d); or (n, r), already centred and rotated, when `rotation_applied`.
    rotation : (d, r) with orthonormal columns that span the centred rows. mean : (d,).
    spectrum : (r,) mean square of the centred rows along each column of `rotation`.
    """

    rows: torch.Tensor
    rotation_applied: bool
    rotation: torch.Tensor
    mean: torch.Tensor
    spectrum: torch.Tensor

    @classmethod
    def rotated_to(cls, features: np.ndarray, precision: str, device: str) -> _Space:
        """The eigenbasis of the centred features, held as coordinates in it unless too large."""
        n, d = features.shape
        size = n * min(n, d)
        rows = _as_tensor(features, "float64" if size <= _DOUBLE else precision, device)
        mean = sum(block.to(torch.float64).sum(0) for block in _blocks(rows)) / n
        rotation, spectrum = _span(rows - mean) if n <= d else _eigenbasis(rows, mean)
        if size > _ROTATED:
            return cls(rows, False, rotation, mean, spectrum)
        coordinates = rows.new_empty((n, len(spectrum)))  # z = R^T (x - mean) of each row
        for given, turned in zip(_blocks(rows), _blocks(coordinates), strict=True):
            turned.copy_((given - mean) @ rotation)
        return cls(coordinates, True, rotation, mean, spectrum)

    @classmethod
    def as_given(cls, features: np.ndarray, precision: str, device: str) -> _Space:
        """The features' own coordinates, for evaluation only."""
        double = features.size <= _DOUBLE
        rows = _as_tensor(features, "float64" if double else precision, device)
        nothing = torch.empty(0)
        return cls(rows, True, nothing, nothing, nothing)

    def columns(self, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Columns (m, width of rows) and constants (m, 1) that give the logits of theta."""
        columns, constant = theta[:, :-1], theta[:, -1:]
        # v z + b = v R^T (x - mean) + b = (R v) x + (b - (R v) mean)
        if not self.rotation_applied:
            columns = columns @ self.rotation.T
            constant = constant - (columns @ self.mean)[:, None]
        return columns.to(self.rows.dtype), constant.to(self.rows.dtype)

    def gradient(self, by_column: torch.Tensor, by_constant: torch.Tensor) -> torch.Tensor:
        """The transpose of `columns`: (m, width) and (m, 1) to (m, r + 1)."""
        # df/dv = R^T sum_i g_i (x_i - mean) = (sum_i g_i x_i - mean sum_i g_i) R, g_i = df/dlogit_i
        if not self.rotation_applied:
            by_column = (by_column - by_constant * self.mean) @ self.rotation
        return torch.cat([by_column, by_constant], dim=1)

    def original_coefficients(self, theta: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (..., d) and intercepts (...) for the features as they were given."""
        # w = R v, b' = b - w mean
        coef = theta[..., :-1] @ self.rotation.T
        intercept = theta[..., -1] - coef @ self.mean
        return coef.cpu().numpy(), intercept.cpu().numpy()


@dataclass(frozen=True)
class _Problems:
    """P problems with `outputs` logits each: K for multinomial, 1 for binary.

    index : weighting, position in the grid of C and label (0 for multinomial) of each.
    weight_row : its row of `_Data.weights`. penalty : 1/C. absent : (P, outputs), added to the
    logits.
    """

    index: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    weight_row: torch.Tensor
    penalty: torch.Tensor
    absent: torch.Tensor

    def take(self, kept: torch.Tensor) -> _Problems:
        weighting, strength, label = self.index
        return _Problems(
            (weighting[kept], strength[kept], label[kept]),
            self.weight_row[kept],
            self.penalty[kept],
            self.absent[kept],
        )


class _Data:
    """Rows, truth and weights, and the objective on them.

    masses : (W, K) summed weights of each class's or label's members. totals : (W, K).
    """

    def __init__(self, space: _Space, truth: np.ndarray, weights: np.ndarray, task: str) -> None:
        self.space = space
        self.device = space.rows.device
        self.multiclass = task == "multiclass"
        self.per_label = weights.ndim == 3
        self.weights = self._move(weights.reshape(len(truth), -1).T)
        self.target = self._move(truth.argmax(1) if self.multiclass else truth.T)
        subscripts = "nwk,nk->wk" if self.per_label else "nw,nk->wk"
        self.masses = np.einsum(subscripts, weights, truth, dtype=np.float64)
        totals = weights.sum(0, dtype=np.float64)
        self.totals = totals if self.per_label else np.tile(totals[:, None], truth.shape[1])

    def _move(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    @property
    def present(self) -> np.ndarray:
        """(W, K): whether the class has members, or the label both values."""
        present: np.ndarray = self.masses > 0
        return present if self.multiclass else present & (self.masses < self.totals)

    def problems(self, c_grid: np.ndarray, present: np.ndarray) -> _Problems:
        """One problem per weighting, C and label that has more than one value."""
        fitted = (present.sum(1) >= 2)[:, None] if self.multiclass else present
        weighting, strength, label = np.nonzero(np.tile(fitted[:, None], (1, len(c_grid), 1)))
        penalty = 1.0 / c_grid[strength]
        if self.multiclass:
            # Two classes: the symmetric solution (-w/2, +w/2) has half the squared norm of
            # scikit-learn's binary logit w, so twice the penalty makes the two objectives equal.
            penalty[present[weighting].sum(1) == 2] *= 2.0
            absent = np.where(present[weighting], 0.0, _ABSENT)
        else:
            absent = np.zeros((len(label), 1))
        weight_row = weighting * present.shape[1] + label if self.per_label else weighting
        return _Problems(
            (self._move(weighting), self._move(strength), self._move(label)),
            *map(self._move, (weight_row, penalty, absent)),
        )

    def constant_logits(self, problems: _Problems) -> torch.Tensor:
        """The intercepts (P, outputs) that are best while all coefficients are zero."""
        weighting, _, label = (part.cpu().numpy() for part in problems.index)
        if not self.multiclass:
            # b = ln(m / (M - m)), m the mass of the positives among M
            positive = self.masses[weighting, label]
            return self._move(
                np.log(positive / (self.totals[weighting, label] - positive))[:, None]
            )
        # b_k = ln m_k less its mean over the classes that have members
        members = self.masses[weighting]
        logits = np.log(members, out=np.zeros_like(members), where=members > 0)
        mean = logits.sum(1, keepdims=True) / (members > 0).sum(1, keepdims=True)
        return self._move(np.where(members > 0, logits - mean, 0.0))

    def objective(
        self, problems: _Problems, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Objective (P,), gradient (P, outputs, r + 1) and B (P, outputs, outputs)."""
        sums = _Sums(theta, self.space)
        self._pass(problems, theta, sums)
        # f = sum_i s_i loss_i + ||W||^2 / (2 C), and W / C in its gradient by W
        value, slopes = sums.loss, theta[..., :-1]
        value += 0.5 * problems.penalty * slopes.square().sum((1, 2))
        gradient = self.space.gradient(sums.by_column, sums.by_constant).view(theta.shape)
        gradient[..., :-1] += problems.penalty[:, None, None] * slopes
        return value, gradient, sums.coupling()

    def log_loss(self, problems: _Problems, theta: torch.Tensor) -> torch.Tensor:
        """Weighted log-loss (P,)."""
        sums = _Sums(theta, self.space, loss_only=True)
        self._pass(problems, theta, sums)
        return sums.loss

    def _pass(self, problems: _Problems, theta: torch.Tensor, sums: _Sums) -> None:
        """Read the feature matrix once."""
        n_problems, outputs, width = theta.shape
        rows = self.space.rows
        columns, constant = self.space.columns(theta.reshape(-1, width))
        constant = constant + problems.absent.reshape(-1, 1).to(rows.dtype)
        step = max(256, _BLOCK_LOGITS // len(columns))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            logits = torch.addmm(constant, columns, block.T).view(n_problems, outputs, -1)
            weights = self.weights[:, start : start + step].to(rows.dtype)
            weights = weights.index_select(0, problems.weight_row)
            # logits = W x + b, (P, outputs, B), for the B rows of a block
            if self.multiclass:
                true = self.target[start : start + step].expand(n_problems, 1, -1)
                sums.add(block, weights, _multinomial(logits, true))
            else:
                sign = 1 - 2 * self.target[:, start : start + step].to(rows.dtype)
                sign = sign.index_select(0, problems.index[2])
                sums.add(block, weights, _binary(logits, sign[:, None]))


class _Sums:
    """What a pass accumulates over the blocks of rows, in float64."""

    def __init__(self, theta: torch.Tensor, space: _Space, loss_only: bool = False) -> None:
        n_problems, outputs, _ = theta.shape
        zeros = partial(torch.zeros, dtype=torch.float64, device=theta.device)
        self.loss_only = loss_only
        self.loss = zeros((n_problems,))
        self.by_column = zeros((n_problems * outputs, space.rows.shape[1]))
        self.by_constant = zeros((n_problems * outputs, 1))
        self.products = zeros((n_problems, outputs, outputs))

    def add(self, block: torch.Tensor, weights: torch.Tensor, rows: _RowTerms) -> None:
        """block (B, width), weights (P, B)."""
        self.loss += rows.losses.mul_(weights).sum(1)  # sum_i s_i loss_i
        if self.loss_only:
            return
        weights = weights[:, None]
        # sum_i s_i p_ik p_il; and, with g_i = s_i dloss_i/dlogits, sum_i g_i x_i and sum_i g_i
        self.products += (rows.left * weights) @ rows.right.mT
        weighted = rows.residual.mul_(weights).view(len(self.by_column), -1)
        self.by_column += weighted @ block
        self.by_constant += weighted.sum(1, keepdim=True)

    def coupling(self) -> torch.Tensor:
        """B = sum_i s_i (diag(p_i) - p_i p_i^T), (P, outputs, outputs); binary: p (1 - p).

        Its rows sum to zero, so the diagonal follows from the products of different classes, which
        stay accurate where one class has nearly all the probability.
        """
        if self.products.shape[1] == 1:
            return self.products
        # B_kl = -sum_i s_i p_ik p_il for k != l, B_kk = -sum_{l != k} B_kl
        cross = self.products - torch.diag_embed(self.products.diagonal(dim1=1, dim2=2))
        return torch.diag_embed(cross.sum(2)) - cross


class _RowTerms(NamedTuple):
    """What each row of a block contributes under each problem.

    losses (P, B); residual (P, outputs, B), the derivative of the loss by the logits; and left and
    right (P, outputs, B), whose products are p_k p_l for classes k != l, or p (1 - p) if binary.
    """

    losses: torch.Tensor
    residual: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor


def _binary(logits: torch.Tensor, sign: torch.Tensor) -> _RowTerms:
    """For logits (P, 1, B) and sign (P, 1, B), which is -1 where y = 1, else 1."""
    # With m = sign * logit the loss is ln(1 + e^m) = max(m, 0) + ln(1 + e^-|m|), its derivative by
    # the logit sign * s(m), with s the sigmoid, and the second one s(m) (1 - s(m)) = p (1 - p).
    margin = logits.mul_(sign)
    losses = margin.clamp(min=0.0).add_(_log1p(margin.abs().neg_().exp_()))[:, 0]
    wrong = margin.sigmoid_()
    return _RowTerms(losses, sign * wrong, wrong, 1 - wrong)


def _multinomial(logits: torch.Tensor, true: torch.Tensor) -> _RowTerms:
    """For logits (P, K, B) and the classes of the rows, expanded to (P, 1, B).

    Written in the differences to the true class's logit, so that a small loss keeps its relative
    accuracy, which log-sum-exp minus that logit would cancel away.
    """
    # With d_k = logit_k - logit_y (d_y = 0) and m = max_k d_k, -ln p_y = ln sum_k e^{d_k} is
    #   m + ln sum_k e^{d_k - m}  if m > 0,  else  ln(1 + sum_{k != y} e^{d_k}).
    logits -= logits.gather(1, true)
    lead = logits.amax(1, keepdim=True)
    odds = logits.sub_(lead).exp_()
    own = odds.gather(1, true)
    odds.scatter_(1, true, 0.0)
    others = odds.sum(1, keepdim=True)
    total = others + own
    losses = torch.where(lead > 0, lead + total.log(), _log1p(others))[:, 0]
    # dloss/dlogit_k = p_k - [k = y]; for k = y that is -sum_{l != y} p_l, without cancellation
    residual = odds.div_(total).scatter(1, true, -(others / total))
    probability = odds.scatter_(1, true, own.div_(total))
    return _RowTerms(losses, residual, probability, probability)


def _log1p(x: torch.Tensor) -> torch.Tensor:
    """log(1 + x) for x >= 0, accurate for small x and several times faster than torch.log1p."""
    # r = 1 + x, rounded. ln(1 + x) = ln r + ln((1 + x) / r); (1 + x) / r = 1 + (x - (r - 1)) / r
    rounded = 1 + x
    return rounded.log().add_((x - (rounded - 1)).div_(rounded))


class _Descent:
    """Batched L-BFGS: every problem at its own point, with its own step and curvature pairs.

    theta, gradient, direction : (P, outputs, r + 1); coupling : B of each problem; value, slope and
    step : (P,), where slope is the derivative along `direction`. `where` is each problem's place in
    the results `final_...`; a problem that stops leaves the batch.
    """

    def __init__(self, data: _Data, problems: _Problems) -> None:
        self.data, self.problems = data, problems
        n_problems, outputs = problems.absent.shape
        width = len(data.space.spectrum) + 1
        self.where = torch.arange(n_problems, device=data.device)
        self.theta = problems.absent.new_zeros((n_problems, outputs, width))
        self.theta[..., -1] = data.constant_logits(problems)
        self.pairs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.scale = torch.ones_like(problems.penalty)
        self.step = torch.ones_like(problems.penalty)
        self.final_theta = self.theta.clone()
        self.final_objective = torch.zeros_like(problems.penalty)
        self.final_gradient_norm = torch.zeros_like(problems.penalty)
        self.final_n_iter = torch.zeros_like(self.where)
        self.final_converged = torch.zeros_like(self.where, dtype=torch.bool)
        self.capped = False

    def run(self, tolerance: float, max_iterations: int, deadline: float) -> None:
        if not len(self.where):
            return
        self.value, self.gradient, coupling = self.data.objective(self.problems, self.theta)
        self.coupling = _Eigen(*torch.linalg.eigh(coupling))
        self.direction = -self._metric(self.gradient)
        for iteration in range(1, max_iterations + 1):
            # Slope g^T d along d = -H g; the quadratic model's minimum lies -g^T d / 2 below f.
            self.slope = _dot(self.gradient, self.direction)
            converged = -0.5 * self.slope <= tolerance * self.value
            late = time.monotonic() > deadline
            stops = converged | (self.step < _SMALLEST_STEP)
            if late or iteration == max_iterations:
                self.capped = late and not bool(converged.all())
                stops = torch.ones_like(stops)
            self._finish(stops, converged, iteration)
            if not len(self.where):
                return
            self._advance()

    def _finish(self, stops: torch.Tensor, converged: torch.Tensor, iteration: int) -> None:
        """Write the results of the problems that stop and take them out of the batch."""
        if not bool(stops.any()):
            return
        at = self.where[stops]
        self.final_theta[at] = self.theta[stops]
        self.final_objective[at] = self.value[stops]
        self.final_gradient_norm[at] = _dot(self.gradient, self.gradient)[stops].sqrt()
        self.final_n_iter[at] = iteration
        self.final_converged[at] = converged[stops]
        kept = ~stops
        self.problems = self.problems.take(kept)
        for name in ("where", "theta", "value", "gradient", "direction", "slope", "step", "scale"):
            setattr(self, name, getattr(self, name)[kept])
        self.coupling = _Eigen(*(part[kept] for part in self.coupling))
        self.pairs = [(move[kept], change[kept], rho[kept]) for move, change, rho in self.pairs]

    def _advance(self) -> None:
        """Evaluate one trial point per problem; move where it is good enough, else step shorter."""
        move = self.step[:, None, None] * self.direction
        trial = self.theta + move
        value, gradient, coupling = self.data.objective(self.problems, trial)
        # Armijo: f(theta + t d) <= f(theta) + c t g^T d, but for the rounding of f.
        expected = self.step * self.slope
        rounding = _RELATIVE_ROUNDING[self.data.space.rows.dtype] * self.value
        accepted = value <= self.value + _SUFFICIENT_DECREASE * expected + rounding
        shorter = self.step * _shrinkage(expected, value - self.value)
        change = gradient - self.gradient
        self.theta = _where(accepted, trial, self.theta)
        self.gradient = _where(accepted, gradient, self.gradient)
        self.coupling = _Eigen(
            *map(partial(_where, accepted), torch.linalg.eigh(coupling), self.coupling)
        )
        self.value = torch.where(accepted, value, self.value)
        self._remember(accepted, move, change)
        self.direction = _where(accepted, self._quasi_newton_direction(), self.direction)
        self.step = torch.where(accepted, 1.0, shorter)

    def _remember(self, accepted: torch.Tensor, move: torch.Tensor, change: torch.Tensor) -> None:
        """Keep the curvature pair; a pair of zeros, without effect, where there is none."""
        product = _dot(move, change)  # s^T y, with s the move and y the change of the gradient
        useful = accepted & (product > 0)
        # H_0 = (s^T y / y^T M y) M, M the inverse metric, so that H_0 fits the curvature along y;
        # with M = I that is Nocedal and Wright's (7.20). rho = 1 / s^T y.
        scale = product / _dot(change, self._metric(change))
        self.scale = torch.where(useful, scale, self.scale)
        rho = torch.where(useful, 1.0 / product, 0.0)
        pair = (_where(useful, move, 0.0), _where(useful, change, 0.0), rho)
        self.pairs = [*self.pairs[-_HISTORY + 1 :], pair]

    def _metric(self, vector: torch.Tensor) -> torch.Tensor:
        """The inverse of the approximate Hessian, e_j B + 1/C in direction j, B for intercepts."""
        # B = Q diag(beta) Q^T, so the Hessian is Q diag(beta_k e_j + 1/C) Q^T in direction j, and
        # Q diag(beta_k) Q^T for the intercepts: turn by Q^T, divide, turn back.
        strength, classes = self.coupling
        slopes = strength[..., None] * self.data.space.spectrum
        slopes += self.problems.penalty[:, None, None]
        # B is singular along a shift of all logits and for absent classes, where gradients are 0.
        intercepts = torch.where(strength > 1e-14 * strength[:, -1:], strength, torch.inf)
        turned = classes.mT @ vector
        turned /= torch.cat([slopes, intercepts[..., None]], dim=2)
        return classes @ turned

    def _quasi_newton_direction(self) -> torch.Tensor:
        """The two-loop recursion: -H g from the pairs (s_i, y_i), rho_i = 1 / s_i^T y_i."""
        # From the latest pair back: a_i = rho_i s_i^T q, q <- q - a_i y_i, beginning with q = g.
        vector = self.gradient.clone()
        shares = []
        for move, change, rho in reversed(self.pairs):
            share = rho * _dot(move, vector)
            vector.addcmul_(share[:, None, None], change, value=-1.0)
            shares.append(share)
        # r = H_0 q; from the earliest on: b = rho_i y_i^T r, r <- r + (a_i - b) s_i.
        vector = self.scale[:, None, None] * self._metric(vector)
        for (move, change, rho), share in zip(self.pairs, reversed(shares), strict=True):
            vector.addcmul_((share - rho * _dot(change, vector))[:, None, None], move)
        return -vector


class _Eigen(NamedTuple):
    """Eigenvalues (P, outputs), ascending, and eigenvectors of the coupling of the classes."""

    values: torch.Tensor
    vectors: torch.Tensor


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner product per problem: (P, outputs, width) twice to (P,)."""
    return (a.flatten(1)[:, None] @ b.flatten(1)[..., None]).flatten()


def _where(chosen: torch.Tensor, a: torch.Tensor, b: torch.Tensor | float) -> torch.Tensor:
    """a of the chosen problems, b of the others."""
    return torch.where(chosen.view(-1, *[1] * (a.ndim - 1)), a, b)


def _shrinkage(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """The minimiser of the parabola through the trial point, within a tenth and a half."""
    # The parabola with value 0 and slope e at 0 and value a at 1 is e t + (a - e) t^2, least at
    # t = e / (2 (e - a)); here in shares of the present step.
    share = 0.5 * expected / (expected - actual)
    return torch.nan_to_num(share, nan=0.1).clamp(0.1, 0.5)


def _span(centred: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal basis (d, r) of the span of n <= d centred rows, and its spectrum (r,).

    The penalty keeps the coefficients in that span, so nothing is lost outside it.
    """
    # X X^T = U diag(l) U^T gives X^T U diag(l)^-1/2, whose columns are orthonormal eigenvectors of
    # X^T X with the eigenvalues l: n x n in place of d x d. The spectrum is l / n.
    values, left = torch.linalg.eigh(centred @ centred.T)
    kept = values > 1e-13 * values.abs().max().clamp(min=1e-300)
    values = values[kept]
    return centred.T @ (left[:, kept] / values.sqrt()), values / len(centred)


def _eigenbasis(rows: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal eigenbasis (d, d) of evenly spaced rows, n > d, and its spectrum (d,).

    Any orthonormal basis leaves the problem as it is; a good one preconditions it.
    """
    n, d = rows.shape
    sample = rows[:: max(1, n // (_ROWS_PER_DIRECTION * d))]
    blocks = (block - mean.to(rows.dtype) for block in _blocks(sample))
    # X^T X / n = R diag(e) R^T
    scatter = sum((block.T @ block).to(torch.float64) for block in blocks)
    values, rotation = torch.linalg.eigh(scatter / len(sample))
    return rotation, values.clamp(min=0.0)


def _blocks(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Some rows at a time, so that no copy of all of them is made."""
    return torch.split(rows, 1024)


def _as_tensor(features: np.ndarray, precision: str, device: str) -> torch.Tensor:
    array = np.ascontiguousarray(features, dtype=precision)
    with warnings.catch_warnings():
        # Memory-mapped features are read-only, and nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array).to(device)


def _checked_parameters(path: LogisticPath) -> np.ndarray:
    """The grid as an array; raises ValueError naming the parameter that is off."""
    grid = np.asarray(path.c_grid, dtype=np.float64)
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid).all() and (grid > 0).all()):
        raise ValueError(f"c_grid is {path.c_grid!r}; allowed are positive finite numbers.")
    if path.precision not in ("float32", "float64"):
        raise ValueError(f"precision is {path.precision!r}; allowed are 'float32' and 'float64'.")
    if path.max_iterations < 1:
        raise ValueError(f"max_iterations is {path.max_iterations}; it must be at least 1.")
    if not path.tolerance > 0:
        raise ValueError(f"tolerance is {path.tolerance}; it must be above 0.")
    return grid


def _checked_arrays(
    features: np.ndarray, truth: np.ndarray, weights: np.ndarray | None, task: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three arrays, weights as (n, W) or (n, W, K), once they fit together."""
    features, truth = np.asarray(features), np.asarray(truth)
    check_features(features)
    check_truth(truth, len(features), task)
    weights = np.ones(len(truth), dtype=np.uint8) if weights is None else np.asarray(weights)
    if weights.ndim == 1:
        weights = weights[:, None]
    per_label = weights.ndim == 3 and task == "multilabel" and weights.shape[2] == truth.shape[1]
    if len(weights) != len(truth) or not (weights.ndim == 2 or per_label):
        raise ValueError(
            f"weights have shape {weights.shape} for truth of shape {truth.shape}; allowed are "
            "(n,), (n, W) and, for multilabel, (n, W, K)."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("weights must be finite and not negative.")
    return features, truth, weights.view(np.uint8) if weights.dtype == bool else weights


def check_features(features: np.ndarray) -> None:
    """Raise ValueError unless (n, d) floats with n, d >= 1, UserError unless all are finite."""
    if features.ndim != 2 or 0 in features.shape or features.dtype.kind != "f":
        raise ValueError(
            f"features have shape {features.shape} and type {features.dtype}; (n, d) floats "
            "with at least one row and one column are needed."
        )
    n_bad = sum(
        int((~np.isfinite(features[start : start + 4096]).all(1)).sum())
        for start in range(0, len(features), 4096)
    )
    if n_bad:
        raise UserError(
            f"{n_bad} of {len(features)} rows of the features hold values that are not finite; "
            "the encoder's output for these images must be fixed before a probe is fitted."
        )


def check_truth(truth: np.ndarray, n_rows: int, task: str) -> None:
    """Raise ValueError unless `truth` is (n, K) of 0 and 1, one-hot for a multi-class task."""
    if task not in ("multiclass", "multilabel"):
        raise ValueError(f"task is {task!r}; allowed are 'multiclass' and 'multilabel'.")
    if truth.ndim != 2 or len(truth) != n_rows or not np.isin(truth, (0, 1)).all():
        raise ValueError(f"truth of shape {truth.shape} is not ({n_rows}, K) of 0 and 1.")
    if task == "multiclass" and (truth.shape[1] < 2 or (truth.sum(1) != 1).any()):
        raise ValueError("truth of a multi-class task needs K >= 2 and exactly one 1 per row.")
