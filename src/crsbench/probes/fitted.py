"""What a probe is once it is fitted. Only NumPy is needed here: run jobs load and apply it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from crsbench.core.files import damaged, read_arrays, write_arrays
from crsbench.metrics.arrays import FloatArray, IntArray

_ROWS_AT_ONCE = 4096  # bounds the float64 copy of the features
_KIND = "crsbench probe: "


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is fitted, the same for every encoder.

    c_grid : candidate inverse regularisation strengths, ascending.
    folds : most cross-validation folds.
    tolerance : a fit has converged when its expected decrease is at most this share of its
        objective; see `crsbench.probes.logistic.LogisticPath`.
    max_iterations : most passes over the features.
    time_cap_seconds : wall time of one `fit_probe`, all C, folds and labels together.
    engine : "crsbench", or "scikit-learn" for the audit path `crsbench.probes.scikit_learn`.
    """

    c_grid: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    folds: int = 5
    tolerance: float = 1e-8
    max_iterations: int = 500
    time_cap_seconds: float = 3600.0
    engine: str = "crsbench"

    def __post_init__(self) -> None:
        check_c_grid(self.c_grid)
        if self.folds < 2:
            raise ValueError(f"folds is {self.folds}; at least 2 are needed.")


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A logistic probe. K classes or labels, P problems: 1 for multiclass, K for multilabel.

    task : "multiclass" or "multilabel".
    coef_ (K, d), intercept_ (K,) : of the refit on all rows at the chosen C.
    c_ (P,) : the chosen C; NaN for a problem that has nothing to fit.
    c_grid_ (S,), oof_log_loss_ (P, S) : mean out-of-fold log-loss; NaN where no folds were made.
    folds_ (P,) : number of folds; 0 where none could be made.
    n_train_ : number of rows.
    n_iter_, gradient_norm_, objective_, converged_ (P,) : of the refit; objective NaN, 0
        iterations and converged for a problem that has nothing to fit.
    capped_ : whether the time cap ended the fit.
    floor_classes_ (F,), floor_probabilities_ (F,) : the classes or labels predicted at a constant.
    """

    task: str
    coef_: np.ndarray
    intercept_: np.ndarray
    c_: np.ndarray
    c_grid_: np.ndarray
    oof_log_loss_: np.ndarray
    folds_: np.ndarray
    n_train_: int
    n_iter_: np.ndarray
    gradient_norm_: np.ndarray
    objective_: np.ndarray
    converged_: np.ndarray
    capped_: bool
    floor_classes_: np.ndarray
    floor_probabilities_: np.ndarray

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (m, K), float64, of features (m, d) standardised as in training."""
        return self.decide(features).probabilities()

    def decide(self, features: np.ndarray) -> Decisions:
        """What it decides of features (m, d) standardised as in training."""
        logits = by_blocks(
            features, self.coef_.shape[1], lambda block: block @ self.coef_.T + self.intercept_
        )
        return Decisions(self.task, logits, self.floor_classes_, self.floor_probabilities_)

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and log-odds, (m, K) each."""
        decided = self.decide(features)
        return decided.probabilities(), decided.log_odds()

    def save(self, path: Path | str) -> None:
        """Write an npz without pickle; equal probes give equal bytes."""
        save_probe(path, "logistic", self)

    @classmethod
    def load(cls, path: Path | str) -> FittedProbe:
        """Read what `save` wrote; raises UserError naming the file when it is anything else."""
        return load_probe(path, "logistic", cls)

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape that each array must have, given the others."""
        n_classes, n_features = self.coef_.shape
        n_problems = 1 if self.task == "multiclass" else n_classes
        n_floors = len(self.floor_classes_)
        per_problem = ("c_", "folds_", "n_iter_", "gradient_norm_", "objective_", "converged_")
        return {
            "coef_": (n_classes, n_features),
            "intercept_": (n_classes,),
            "oof_log_loss_": (n_problems, len(self.c_grid_)),
            "floor_classes_": (n_floors,),
            "floor_probabilities_": (n_floors,),
        } | dict.fromkeys(per_problem, (n_problems,))


def check_c_grid(c_grid: Sequence[float]) -> None:
    """Raise ValueError unless the grid is positive, finite and ascending."""
    ascending = all(a < b for a, b in itertools.pairwise(c_grid))
    if not c_grid or not ascending or not 0 < c_grid[0] <= c_grid[-1] < float("inf"):
        raise ValueError(f"c_grid is {c_grid}; positive finite ascending numbers are needed.")


def default_c(c_grid: Sequence[float]) -> float:
    """The C where no two folds can be made: the grid's middle value (of two, the lower)."""
    return c_grid[(len(c_grid) - 1) // 2]


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a probe decides of m cases.

    logits (m, K) : float64; floor_classes (F,), floor_probabilities (F,) : the classes or labels
    that are predicted at a constant, whose logits have no effect.
    """

    task: str
    logits: np.ndarray
    floor_classes: np.ndarray
    floor_probabilities: np.ndarray

    def probabilities(self) -> np.ndarray:
        """Probabilities (m, K), float64.

        Multiclass: softmax over the classes that are not at their floor, scaled by 1 minus the
        floors. Multilabel: a sigmoid per label.
        """
        if self.task == "multilabel":
            # sigmoid(z) = 1 / (1 + e^-z) = e^(-ln(1 + e^-z)), which overflows for no z
            probabilities: FloatArray = np.exp(-np.logaddexp(0.0, -self.logits))
        else:
            logits = self.logits.copy()
            logits[:, self.floor_classes] = -np.inf
            odds = np.exp(logits - logits.max(1, keepdims=True))
            fitted = 1.0 - self.floor_probabilities.sum()
            probabilities = odds * (fitted / odds.sum(1, keepdims=True))
        probabilities[:, self.floor_classes] = self.floor_probabilities
        return probabilities

    def log_odds(self) -> np.ndarray:
        """Log-odds (m, K), float64: they rank as the probabilities do, but never saturate.

        Multiclass: of each class given that none at its floor is true. Multilabel: the logits. A
        class at its floor f has everywhere ln(f / (1 - f)).
        """
        floors = np.log(self.floor_probabilities) - np.log1p(-self.floor_probabilities)
        scores = self.logits.copy()
        if self.task == "multiclass":
            fitted = np.setdiff1d(np.arange(scores.shape[1]), self.floor_classes)
            scores[:, fitted] = _log_odds(scores[:, fitted]) if len(fitted) > 1 else -floors.sum()
        scores[:, self.floor_classes] = floors
        return scores


def _log_odds(logits: np.ndarray) -> np.ndarray:
    """z_k = l_k - ln sum over j != k of exp(l_j), (m, K), of logits (m, K) with K of at least 2."""
    cases, top = np.arange(len(logits)), logits.argmax(1)
    highest = logits[cases, top]
    # With t the class of the highest logit, o_j = exp(l_j - l_t) and o_t = 1. For k other than t,
    # z_k = l_k - l_t - ln(1 + sum over j != t of o_j - o_k): all terms of the sum are positive, so
    # little is lost in taking one away.
    odds = np.exp(logits - highest[:, None])
    odds[cases, top] = 0.0
    scores: FloatArray = logits - highest[:, None] - np.log1p(odds.sum(1, keepdims=True) - odds)
    # z_t = l_t - l_s - ln sum over j != t of exp(l_j - l_s), s the second highest.
    others = logits.copy()
    others[cases, top] = -np.inf
    second = others.max(1)
    rest = np.exp(others - second[:, None]).sum(1)
    scores[cases, top] = highest - second - np.log(rest)
    return scores


def by_blocks(
    features: np.ndarray, width: int, logits_of: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Logits (m, K) of features (m, width), by blocks of rows in float64.

    Raises ValueError for features of another width.
    """
    features = np.asarray(features)
    if features.ndim != 2 or features.shape[1] != width:
        raise ValueError(f"features have shape {features.shape}; (m, {width}) is needed.")
    starts = range(0, max(1, len(features)), _ROWS_AT_ONCE)
    blocks = (features[start : start + _ROWS_AT_ONCE].astype(np.float64) for start in starts)
    logits: FloatArray = np.concatenate([logits_of(block) for block in blocks])
    return logits


def class_floors(members: IntArray, n_rows: IntArray | int, task: str) -> FloatArray:
    """Constant probability (K,) of each class or label that cannot be fitted, NaN for the others.

    A class without members among n rows and K classes: 1/(n + K). A label without positives or
    without negatives: (positives + 1)/(n + 2), Laplace's rule of succession.
    """
    if task == "multiclass":
        return np.where(members == 0, 1.0 / (n_rows + len(members)), np.nan)
    lacking = (members == 0) | (members == n_rows)
    return np.where(lacking, (members + 1.0) / (n_rows + 2.0), np.nan)


class _Storable(Protocol):
    """A dataclass of plain arrays, numbers and strings, one of them its task."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def task(self) -> str: ...

    def expected_shapes(self) -> dict[str, tuple[int, ...]]: ...


_Probe = TypeVar("_Probe", bound=_Storable)


def save_probe(path: Path | str, kind: str, probe: _Storable) -> None:
    """Write a probe as an npz, whole or not at all."""
    arrays = {field.name: np.asarray(getattr(probe, field.name)) for field in fields(probe)}
    write_arrays(path, kind=np.asarray(_KIND + kind), **arrays)


def load_probe(path: Path | str, kind: str, cls: type[_Probe]) -> _Probe:
    """Read what `save_probe` wrote; raises UserError naming the file when it is anything else."""
    arrays = read_arrays(path)
    try:
        _check_names(arrays, kind, {field.name for field in fields(cls)})
        values = {name: a if a.ndim else a.item() for name, a in arrays.items()}
        probe = cls(**values)
        _check_shapes(probe)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise damaged(path, error) from error
    return probe


def _check_names(arrays: dict[str, np.ndarray], kind: str, names: set[str]) -> None:
    found = str(arrays.pop("kind", "a file of another kind"))
    if found != _KIND + kind:
        raise ValueError(f"it is {found}, not {_KIND + kind}")
    if set(arrays) != names:
        raise ValueError(f"it holds {sorted(arrays)}, not {sorted(names)}")


def _check_shapes(probe: _Storable) -> None:
    if probe.task not in ("multiclass", "multilabel"):
        raise ValueError(f"its task is {probe.task!r}")
    for name, shape in probe.expected_shapes().items():
        found = np.shape(getattr(probe, name))
        if found != shape:
            raise ValueError(f"its {name} has shape {found}, not {shape}")
