"""Four calibrators with one contract: temperature, vector, isotonic and Dirichlet scaling.

Each is fitted on cases that its probe or model has not seen, and then maps predictions to better
calibrated probabilities. A calibrator *takes* logits or probabilities; ``fit`` and
``predict_proba`` refuse the other. ``fit_probabilities`` and ``recalibrate`` accept probabilities
whatever the calibrator takes, and turn them into logits first where those are wanted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from crsbench.calibration.likelihood import (
    RIDGE,
    DirichletLikelihood,
    binary_objective,
    inverse_temperature,
    minimise,
    sigmoid,
    softmax,
    vector_objective,
)
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, write_json
from crsbench.metrics.arrays import (
    ROW_SUM_TOLERANCE,
    UNKNOWN,
    BoolArray,
    FloatArray,
    IntArray,
    Task,
)
from crsbench.metrics.proper_scores import LOG_LOSS_FLOOR
from crsbench.probes.folds import folds_per_problem

TEMPERATURES = (0.01, 100.0)
"""The bracket in which a temperature is sought."""

OFF_DIAGONAL_PENALTIES = (100.0, 10.0, 1.0, 0.1, 0.01)
INTERCEPT_PENALTIES = (10.0, 0.1, 1e-3)
"""What Dirichlet scaling chooses from, strongest first."""

INNER_FOLDS = 5
"""Most folds of the cross-validation inside the calibration set."""

_FEW_VALUES = 30
_FORMAT = "crsbench calibrator 1"


def logits_of(probabilities: npt.ArrayLike, task: Task) -> FloatArray:
    """Logits (n, K) that give these probabilities (n, K).

    Multi-class: ln p less its mean over the classes. A multinomial logistic regression with an L2
    penalty has exactly these logits, since its coefficients sum to zero over the classes.
    Multi-label: ln p − ln(1 − p). Probabilities are clipped to [ε, 1 − ε], ε = 2⁻⁵², so a logit is
    finite and at most 36 from zero (multi-label).

    ln ¾ − ln ¼ = ln 3 = 1.0986; less its mean each logit of two classes is half of that.

    >>> logits_of([[0.75, 0.25]], "multilabel").round(4).tolist()
    [[1.0986, -1.0986]]
    >>> logits_of([[0.75, 0.25]], "multiclass").round(4).tolist()
    [[0.5493, -0.5493]]
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    if task == "multilabel":
        return _log(probabilities) - _log(1.0 - probabilities)
    logits: FloatArray = _log(probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    return logits


class Calibrator(ABC):
    """What all calibrators share. Fitted attributes end in ``_``.

    Args:
        task: ``multiclass`` (one of K classes, rows of probabilities sum to one) or ``multilabel``
            (K separate labels; one column for a binary classifier).

    Attributes:
        lacking_: (m,) classes or labels of which the calibration set has no positive or no negative
            case. A label stays as it was, and with isotonic regression so does a class; elsewhere
            the penalty decides how far a missing class goes towards zero.
    """

    name: ClassVar[str]
    takes: ClassVar[Literal["logits", "probabilities"]]
    arrays: ClassVar[tuple[str, ...]]
    """The fitted attributes that hold what was learnt."""

    lacking_: IntArray
    n_classes_: int

    def __init__(self, task: Task = "multiclass") -> None:
        self.task = task

    def fit(
        self, values: npt.ArrayLike, truth: npt.ArrayLike, groups: npt.ArrayLike | None = None
    ) -> Self:
        """Learn the map from calibration cases.

        Args:
            values: (n, K) logits or probabilities, whichever the calibrator ``takes``.
            truth: (n, K) of 0 and 1, one-hot for a multi-class task; for a multi-label one also
                −1 (unknown: the case does not count for that label). Or, multi-class, (n,) class
                numbers.
            groups: (n,) patients or lesions, which inner folds keep whole; None: each its own.

        Raises:
            ValueError: no cases, shapes that do not fit, a value that is not finite, or
                probabilities for logits or the other way round.
        """
        return self._learn(self._checked(values), truth, groups)

    def fit_probabilities(
        self,
        probabilities: npt.ArrayLike,
        truth: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
    ) -> Self:
        """As ``fit``, from probabilities (n, K) whatever the calibrator takes."""
        return self._learn(self._wanted(probabilities), truth, groups)

    def predict_proba(self, values: npt.ArrayLike) -> FloatArray:
        """Calibrated probabilities (n, K) of what the calibrator ``takes`` (n, K)."""
        return self._predict(self._with_known_width(self._checked(values)))

    def recalibrate(self, probabilities: npt.ArrayLike) -> FloatArray:
        """Calibrated probabilities (n, K) of probabilities (n, K)."""
        return self._predict(self._with_known_width(self._wanted(probabilities)))

    def save(self, path: Path | str, classes: Sequence[str] = ()) -> None:
        """Write strict JSON; floats keep every bit. ``classes``: the K names, for the reader."""
        content = {name: _as_lists(getattr(self, name)) for name in (*self.arrays, "lacking_")}
        write_json(
            path,
            {
                "format": _FORMAT,
                "method": self.name,
                "task": self.task,
                "takes": self.takes,
                "n_classes": self.n_classes_,
                "classes": list(classes),
                "fitted": content,
            },
        )

    @abstractmethod
    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each fitted array, given ``n_classes_``."""

    @abstractmethod
    def _fit(self, values: FloatArray, truth: IntArray, groups: npt.NDArray[Any]) -> None: ...

    @abstractmethod
    def _predict(self, values: FloatArray) -> FloatArray: ...

    def _learn(
        self, values: FloatArray, truth: npt.ArrayLike, groups: npt.ArrayLike | None
    ) -> Self:
        n, self.n_classes_ = values.shape
        if n == 0:
            raise ValueError("a calibrator needs at least one case, got none")
        truth = _checked_truth(truth, values.shape, self.task)
        groups = np.arange(n) if groups is None else np.asarray(groups)
        if groups.shape != (n,):
            raise ValueError(f"groups must be ({n},), got {groups.shape}")
        positive, negative = (truth == 1).any(axis=0), (truth == 0).any(axis=0)
        self.lacking_ = np.flatnonzero(~(positive & negative))
        self._fit(values, truth, groups)
        return self

    def _checked(self, values: npt.ArrayLike) -> FloatArray:
        values = _checked_shape(values, self.task)
        if self.takes == "probabilities":
            return _checked_probabilities(values, self.task, self.name)
        inside = ((values >= 0) & (values <= 1)).all()
        if self.task == "multiclass":
            looks = inside and np.abs(values.sum(axis=1) - 1).max(initial=0) <= ROW_SUM_TOLERANCE
        else:  # a few logits can lie in [0, 1] by chance
            looks = inside and values.size >= _FEW_VALUES
        if looks and values.size:
            raise ValueError(
                f"{self.name} scaling takes logits, and these values are probabilities (all in "
                "[0, 1]); use fit_probabilities and recalibrate for those"
            )
        return values

    def _wanted(self, probabilities: npt.ArrayLike) -> FloatArray:
        checked = _checked_shape(probabilities, self.task)
        checked = _checked_probabilities(checked, self.task, "fit_probabilities")
        return checked if self.takes == "probabilities" else logits_of(checked, self.task)

    def _with_known_width(self, values: FloatArray) -> FloatArray:
        if values.shape[1] != self.n_classes_:
            raise ValueError(f"values must be (n, {self.n_classes_}), got {values.shape}")
        return values

    def _known_labels(self, truth: IntArray) -> list[tuple[int, BoolArray]]:
        """The labels that can be fitted, each with the mask (n,) of its known cases."""
        return [
            (k, truth[:, k] != UNKNOWN) for k in range(truth.shape[1]) if k not in self.lacking_
        ]


class TemperatureScaling(Calibrator):
    """p = softmax(z / T), or per label sigmoid(z / T) (Guo et al., ICML 2017).

    T minimises the log-loss within ``TEMPERATURES``. The order of a label's cases, and so its
    AUROC, does not change; nor does the most probable class.

    Attributes:
        temperature_: (1,) for a multi-class task, (K,) for a multi-label one.
        at_bound_: the same shape, whether T ended at an end of the bracket.

    Three of four cases with the logit ln 9, a probability of 0.9, hold. T = 2 halves the logit, and
    sigmoid(ln 3) = ¾:

    >>> scaling = TemperatureScaling("multilabel")
    >>> scaling = scaling.fit(np.full((4, 1), np.log(9)), [[1], [1], [1], [0]])
    >>> scaling.temperature_.round(6).tolist()
    [2.0]
    >>> scaling.recalibrate([[0.9]]).round(6).tolist()
    [[0.75]]
    """

    name = "temperature"
    takes = "logits"
    arrays = ("temperature_", "at_bound_")

    temperature_: FloatArray
    at_bound_: BoolArray

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = (1 if self.task == "multiclass" else self.n_classes_,)
        return {"temperature_": shape, "at_bound_": shape}

    def _fit(self, values: FloatArray, truth: IntArray, groups: npt.NDArray[Any]) -> None:
        bracket = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]  # of β = 1 / T
        if self.task == "multiclass":
            beta = np.array([inverse_temperature(values, truth.astype(float), bracket)])
        else:
            beta = np.ones(self.n_classes_)
            for k, known in self._known_labels(truth):
                column, labels = values[known, k], truth[known, k].astype(float)
                beta[k] = inverse_temperature(column, labels, bracket)
        self.temperature_ = 1 / beta
        self.at_bound_ = np.isin(beta, bracket)

    def _predict(self, values: FloatArray) -> FloatArray:
        return (softmax if self.task == "multiclass" else sigmoid)(values / self.temperature_)


class VectorScaling(Calibrator):
    """p = softmax(w ∘ z + b) (Guo et al., ICML 2017); per label sigmoid(w z + b) (Platt, 1999).

    Maximum likelihood, with a ridge of a hundredth of a case towards w = 1, b = 0.

    Attributes:
        weight_, bias_: (K,).

    Where nine of ten cases at 0.75 hold, and one of ten at 0.25, the logit ln 3 becomes
    ln 9 = 2 ln 3, but for the ridge:

    >>> values = [[0.75]] * 10 + [[0.25]] * 10
    >>> truth = [[1]] * 9 + [[0]] * 10 + [[1]]
    >>> VectorScaling("multilabel").fit_probabilities(values, truth).weight_.round(2).tolist()
    [2.0]
    """

    name = "vector"
    takes = "logits"
    arrays = ("weight_", "bias_")

    weight_: FloatArray
    bias_: FloatArray

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.arrays, (self.n_classes_,))

    def _fit(self, values: FloatArray, truth: IntArray, groups: npt.NDArray[Any]) -> None:
        start = np.repeat([1.0, 0.0], self.n_classes_)
        if self.task == "multiclass":
            found = minimise(vector_objective(values, truth.astype(float)), start)
            self.weight_, self.bias_ = found.reshape(2, -1)
            return
        self.weight_, self.bias_ = start.reshape(2, -1)
        for k, known in self._known_labels(truth):
            design = np.stack([values[known, k], np.ones(known.sum())], axis=1)
            labels, identity = truth[known, k].astype(float), np.array([1.0, 0.0])
            objective = binary_objective(design, labels, identity, np.full(2, RIDGE))
            self.weight_[k], self.bias_[k] = minimise(objective, identity)

    def _predict(self, values: FloatArray) -> FloatArray:
        logits = values * self.weight_ + self.bias_
        return softmax(logits) if self.task == "multiclass" else sigmoid(logits)


class IsotonicScaling(Calibrator):
    """Isotonic regression of each class's frequency on its probability (Zadrozny and Elkan, 2002).

    Each class or label against the rest, as scikit-learn's ``IsotonicRegression`` has it: equal
    probabilities are one point, values between two points lie on the line between them, values
    beyond are those of the nearest point. Multi-class rows are then divided by their sum. A class
    that the calibration set lacks keeps its probability before that; so does a row that all
    classes give zero.

    Attributes:
        thresholds_: for each class the points (x, y), each (m,), of its map.

    The truth falls from 0.2 to 0.4, which share their mean ½; from 0.4 to 0.8 the map is a line:

    >>> scaling = IsotonicScaling("multilabel")
    >>> scaling = scaling.fit([[0.2], [0.4], [0.8]], [[1], [0], [1]])
    >>> scaling.recalibrate([[0.1], [0.3], [0.6], [0.9]]).round(6).tolist()
    [[0.5], [0.5], [0.75], [1.0]]
    """

    name = "isotonic"
    takes = "probabilities"
    arrays = ("thresholds_",)

    thresholds_: list[tuple[FloatArray, FloatArray]]

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}  # each map has points of its own number

    def _fit(self, values: FloatArray, truth: IntArray, groups: npt.NDArray[Any]) -> None:
        as_it_is = np.array([0.0, 1.0])
        self.thresholds_ = [(as_it_is, as_it_is)] * self.n_classes_
        for k, known in self._known_labels(truth):
            self.thresholds_[k] = _isotonic(values[known, k], truth[known, k])

    def _predict(self, values: FloatArray) -> FloatArray:
        maps = zip(values.T, self.thresholds_, strict=True)
        calibrated = np.stack([np.interp(column, x, y) for column, (x, y) in maps], axis=1)
        if self.task == "multilabel":
            return calibrated
        mass = calibrated.sum(axis=1, keepdims=True)
        # p_k / Σ_l p_l, and what it was where the sum is 0
        shares: FloatArray = np.divide(calibrated, mass, out=values.copy(), where=mass > 0)
        return shares


class DirichletScaling(Calibrator):
    """p' = softmax(W ln p + b) with the off-diagonal and intercept penalty of Kull et al. (NeurIPS
    2019).

    Multi-label: the two-class case for each label, p' = sigmoid(a ln p − b ln(1 − p) + c), which is
    beta calibration (Kull et al., AISTATS 2017) without its sign constraint. There the diagonal
    alone can express every a and b, so only the intercept penalty acts.

    The penalties minimise the log-loss of a grouped, stratified cross-validation inside the
    calibration set, for each label on its own: first the off-diagonal one, then that of the
    intercept. Ties go to the stronger; where no folds can be made the strongest are taken.

    Attributes:
        weight_: (K, K), or (K, 2) with each label's a and b. intercept_: (K,).
        off_diagonal_penalty_, intercept_penalty_: the chosen ones, (1,) or (K,); NaN where none.
    """

    name = "dirichlet"
    takes = "probabilities"
    arrays = ("weight_", "intercept_", "off_diagonal_penalty_", "intercept_penalty_")

    weight_: FloatArray
    intercept_: FloatArray
    off_diagonal_penalty_: FloatArray
    intercept_penalty_: FloatArray

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        k, one = self.n_classes_, self.task == "multiclass"
        penalties = (1 if one else k,)
        return {
            "weight_": (k, k if one else 2),
            "intercept_": (k,),
            "off_diagonal_penalty_": penalties,
            "intercept_penalty_": penalties,
        }

    def _fit(self, values: FloatArray, truth: IntArray, groups: npt.NDArray[Any]) -> None:
        fold, n_folds = folds_per_problem(
            np.maximum(truth, 0), truth != UNKNOWN, groups, self.task, INNER_FOLDS
        )
        if self.task == "multiclass":
            self._fit_classes(_log(values), truth.astype(float), fold[:, 0], n_folds[0])
            return
        n_labels = self.n_classes_
        self.weight_, self.intercept_ = np.ones((n_labels, 2)), np.zeros(n_labels)
        self.off_diagonal_penalty_ = np.full(n_labels, np.nan)
        self.intercept_penalty_ = np.full(n_labels, np.nan)
        for k, known in self._known_labels(truth):
            probabilities, labels = values[known, k], truth[known, k].astype(float)
            found, penalty = _fit_beta(probabilities, labels, fold[known, k], n_folds[k])
            self.weight_[k], self.intercept_[k] = found[:2], found[2]
            self.intercept_penalty_[k] = penalty

    def _fit_classes(
        self, logs: FloatArray, truth: FloatArray, fold: IntArray, n_folds: int
    ) -> None:
        folds = _DirichletFolds(logs, truth, fold, n_folds)
        middle = INTERCEPT_PENALTIES[len(INTERCEPT_PENALTIES) // 2]
        off, _ = folds.best([(penalty, middle) for penalty in OFF_DIAGONAL_PENALTIES])
        chosen = folds.best([(off, penalty) for penalty in INTERCEPT_PENALTIES])
        likelihood = DirichletLikelihood(logs, truth)
        theta = minimise(likelihood.penalised(*chosen), likelihood.identity)
        self.weight_, self.intercept_ = _split(theta, self.n_classes_)
        self.off_diagonal_penalty_, self.intercept_penalty_ = np.array(chosen).reshape(2, 1)

    def _predict(self, values: FloatArray) -> FloatArray:
        if self.task == "multiclass":
            return softmax(_log(values) @ self.weight_.T + self.intercept_)
        first, second = self.weight_.T
        return sigmoid(first * _log(values) - second * _log(1 - values) + self.intercept_)


CALIBRATORS: dict[str, Callable[..., Calibrator]] = {
    calibrator.name: calibrator
    for calibrator in (TemperatureScaling, VectorScaling, IsotonicScaling, DirichletScaling)
}
"""The four by name, in the order of the protocol."""


def load_calibrator(path: Path | str) -> Calibrator:
    """Read what ``Calibrator.save`` wrote; raises UserError naming the file if it is none."""
    content = read_json(path)
    try:
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT!r}")
        calibrator = CALIBRATORS[content["method"]](content["task"])
        calibrator.n_classes_ = int(content["n_classes"])
        for name in (*calibrator.arrays, "lacking_"):
            setattr(calibrator, name, _from_lists(name, content["fitted"][name]))
        for name, shape in calibrator.expected_shapes().items():
            if np.shape(getattr(calibrator, name)) != shape:
                raise ValueError(f"its {name} is not of the shape {shape}")
        calibrator.recalibrate(np.full((1, calibrator.n_classes_), 1 / calibrator.n_classes_))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(
            f"{path} is no saved calibrator ({error}); fit and save it anew."
        ) from error
    return calibrator


# --- helpers -------------------------------------------------------------------------------------

_ROUGHLY = 1e-2  # tolerance of fits that only a choice depends on
_TIE = 1e-6  # out-of-fold losses closer than this share are one


def _log(probabilities: FloatArray) -> FloatArray:
    return np.log(np.clip(probabilities, LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR))


def _isotonic(scores: FloatArray, truth: IntArray) -> tuple[FloatArray, FloatArray]:
    """Points (x, y) of the least-squares rising map from scores (n,) to truth (n,)."""
    # Of each distinct score its mean truth, weighted by its cases; then min Σ_j w_j (y_j − mean_j)²
    # over y_1 ≤ y_2 ≤ … by pooling adjacent violators.
    x, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    mean = np.bincount(place, truth) / count
    y = isotonic_regression(mean, weights=count).x.clip(0.0, 1.0)
    # Within a run of equal y only its ends are points of the map.
    inner = np.zeros(len(y), dtype=bool)
    inner[1:-1] = (y[1:-1] == y[:-2]) & (y[1:-1] == y[2:])
    return x[~inner], y[~inner]


class _DirichletFolds:
    """Multi-class Dirichlet scaling in cross-validation."""

    def __init__(self, logs: FloatArray, truth: FloatArray, fold: IntArray, n_folds: int) -> None:
        self._n_classes = logs.shape[1]
        self._parts = []
        for test in (fold == held_out for held_out in range(n_folds)):
            likelihood = DirichletLikelihood(logs[~test], truth[~test])
            self._parts.append((likelihood, logs[test], truth[test] == 1))

    def best(self, grid: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The penalties of the grid with the least log-loss; the first without folds."""
        losses = np.zeros(len(grid))
        for likelihood, logs, truth in self._parts:
            theta = likelihood.identity
            for place, penalties in enumerate(grid):
                theta = minimise(likelihood.penalised(*penalties), theta, _ROUGHLY)
                weight, intercept = _split(theta, self._n_classes)
                losses[place] -= _log(softmax(logs @ weight.T + intercept)[truth]).sum()
        return grid[_least(losses)]


def _fit_beta(
    probabilities: FloatArray, truth: FloatArray, fold: IntArray, n_folds: int
) -> tuple[FloatArray, float]:
    """a, b, c of one label, and the chosen intercept penalty.

    Two classes with opposite intercepts ± c / 2 have the ODIR penalty μ/2 · 2 (c/2)² = μ c²/4 on
    the mean over cases.
    """
    # logit = a ln p − b ln(1 − p) + c
    ones = np.ones_like(probabilities)
    design = np.stack([_log(probabilities), -_log(1 - probabilities), ones], axis=1)
    identity = np.array([1.0, 1.0, 0.0])

    def fitted(rows: BoolArray, penalty: float, start: FloatArray, *how: float) -> FloatArray:
        # ½ r c² with r = n μ / 2 is the n cases' μ c² / 4
        ridge = RIDGE + np.array([0.0, 0.0, rows.sum() * penalty / 2])
        objective = binary_objective(design[rows], truth[rows], identity, ridge)
        return minimise(objective, start, *how)

    losses = np.zeros(len(INTERCEPT_PENALTIES))
    for held_out in range(n_folds):
        theta = identity
        for place, penalty in enumerate(INTERCEPT_PENALTIES):
            theta = fitted(fold != held_out, penalty, theta, _ROUGHLY)
            test = fold == held_out
            logit = design[test] @ theta
            losses[place] += np.logaddexp(0.0, np.where(truth[test] == 1, -logit, logit)).sum()
    chosen = INTERCEPT_PENALTIES[_least(losses)]
    return fitted(np.ones(len(truth), dtype=bool), chosen, identity), chosen


def _least(losses: FloatArray) -> int:
    """The first place whose loss is the least, to within a tie."""
    return int(np.argmax(losses <= losses.min() * (1 + _TIE)))


def _split(theta: FloatArray, n_classes: int) -> tuple[FloatArray, FloatArray]:
    """W (K, K) and b (K,) of the rows (W_k, b_k), one after the other."""
    rows = theta.reshape(n_classes, n_classes + 1)
    return rows[:, :n_classes], rows[:, n_classes]


def _checked_shape(values: npt.ArrayLike, task: Task) -> FloatArray:
    if task not in ("multiclass", "multilabel"):
        raise ValueError(f"task must be 'multiclass' or 'multilabel', got {task!r}")
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < (2 if task == "multiclass" else 1):
        wanted = "(n, K) with K ≥ 2" if task == "multiclass" else "(n, K)"
        raise ValueError(f"values of a {task} task must be {wanted}, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite, found NaN or infinity")
    return values


def _checked_probabilities(values: FloatArray, task: Task, name: str) -> FloatArray:
    hint = f"{name} takes probabilities"
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{hint}, found values from {values.min():g} to {values.max():g}")
    if task == "multiclass":
        off = float(np.abs(values.sum(axis=1) - 1).max(initial=0))
        if off > ROW_SUM_TOLERANCE:
            raise ValueError(f"{hint}, whose rows sum to one; the worst row is off by {off:g}")
    return values


def _checked_truth(truth: npt.ArrayLike, shape: tuple[int, int], task: Task) -> IntArray:
    """Truth as (n, K) of 0, 1 and, multi-label, ``UNKNOWN``."""
    truth = np.asarray(truth)
    if task == "multiclass" and truth.ndim == 1 and truth.dtype.kind in "iu":
        if len(truth) != shape[0] or not ((truth >= 0) & (truth < shape[1])).all():
            raise ValueError(f"class numbers must be ({shape[0]},) from 0 to {shape[1] - 1}")
        one_hot: IntArray = np.eye(shape[1], dtype=np.int64)[truth]
        return one_hot
    if truth.shape != shape:
        raise ValueError(f"truth must be {shape} as the values are, got {truth.shape}")
    allowed = (0, 1, UNKNOWN) if task == "multilabel" else (0, 1)
    if not np.isin(truth, allowed).all():
        raise ValueError(f"truth of a {task} task must hold only {allowed}")
    if task == "multiclass" and (truth.sum(axis=1) != 1).any():
        raise ValueError("truth of a multiclass task must be one-hot: one 1 in every row")
    return truth.astype(np.int64)


def _as_lists(values: Any) -> Any:
    """Plain lists; NaN, which JSON lacks, becomes None."""
    if isinstance(values, list | tuple):
        return [_as_lists(value) for value in values]
    if isinstance(values, np.ndarray):
        return _as_lists(values.tolist())
    return None if isinstance(values, float) and math.isnan(values) else values


def _from_lists(name: str, values: Any) -> Any:
    if name == "thresholds_":
        return [tuple(np.array(axis, dtype=np.float64) for axis in pair) for pair in values]
    if name == "lacking_":
        return np.array(values, dtype=np.int64)
    if name == "at_bound_":
        return np.array(values, dtype=bool)
    return np.array(values, dtype=np.float64)
