"""What a probe is once it is fitted. Only NumPy is needed here: run jobs load and apply it."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from crsbench.errors import UserError
from crsbench.files import whole_or_absent

_ROWS_AT_ONCE = 4096  # bounds the float64 copy of the features
# What np.load raises for a file that is cut off, changed or of another kind; TypeError: an npy.
_DAMAGE = (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is fitted, the same for every encoder.

    c_grid : candidate inverse regularisation strengths, ascending.
    folds : most cross-validation folds.
    tolerance : a fit has converged when its expected decrease is at most this share of its
        objective; see `crsbench.probes.logistic.LogisticPath`.
    max_iterations : most passes over the features.
    time_cap_seconds : wall time of one `fit_probe`, all C, folds and labels together.
    precision : "float32" or "float64", for large feature matrices (small ones use float64).
    device : "cpu" or a CUDA device.
    """

    c_grid: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    folds: int = 5
    tolerance: float = 5e-8
    max_iterations: int = 500
    time_cap_seconds: float = 3600.0
    precision: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.c_grid, self.c_grid[1:], strict=False))
        if not self.c_grid or not ascending or not self.c_grid[0] > 0:
            raise ValueError(f"c_grid is {self.c_grid}; positive ascending numbers are needed.")
        if self.folds < 2:
            raise ValueError(f"folds is {self.folds}; at least 2 are needed.")

    @property
    def default_c(self) -> float:
        """The C where no two folds can be made: the grid's middle value (of two, the lower)."""
        return self.c_grid[(len(self.c_grid) - 1) // 2]


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
        """Probabilities (m, K), float64, of features (m, d) standardised as in training.

        Multiclass: softmax over the fitted classes, scaled by 1 minus the floors. Multilabel: a
        sigmoid per label.
        """
        features = np.asarray(features)
        if features.ndim != 2 or features.shape[1] != self.coef_.shape[1]:
            raise ValueError(
                f"features have shape {features.shape}; (m, {self.coef_.shape[1]}) is needed."
            )
        probabilities = np.empty((len(features), len(self.coef_)))
        for start in range(0, len(features), _ROWS_AT_ONCE):
            block = features[start : start + _ROWS_AT_ONCE].astype(np.float64)
            logits = block @ self.coef_.T + self.intercept_
            probabilities[start : start + _ROWS_AT_ONCE] = self._probabilities(logits)
        return probabilities

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        if self.task == "multilabel":
            probabilities = np.exp(-np.logaddexp(0.0, -logits))
        else:
            logits[:, self.floor_classes_] = -np.inf
            odds = np.exp(logits - logits.max(1, keepdims=True))
            share = (1.0 - self.floor_probabilities_.sum()) / odds.sum(1, keepdims=True)
            probabilities = odds * share
        probabilities[:, self.floor_classes_] = self.floor_probabilities_
        return probabilities

    def save(self, path: Path | str) -> None:
        """Write an npz without pickle; equal probes give equal bytes."""
        save_arrays(path, "logistic", {f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path | str) -> FittedProbe:
        """Read what `save` wrote; raises UserError naming the file when it is anything else."""
        arrays = load_arrays(path, "logistic", {f.name for f in fields(cls)})
        try:
            probe = cls(
                **arrays
                | {
                    "task": str(arrays["task"][()]),
                    "n_train_": int(arrays["n_train_"][()]),
                    "capped_": bool(arrays["capped_"][()]),
                }
            )
            probe._check_shapes()
        except (TypeError, ValueError, IndexError) as error:
            raise _unreadable(path, str(error)) from error
        return probe

    def _check_shapes(self) -> None:
        n_classes, n_features = self.coef_.shape
        n_problems = {"multiclass": 1, "multilabel": n_classes}.get(self.task)
        if n_problems is None:
            raise ValueError(f"its task is {self.task!r}")
        n_floors = len(self.floor_classes_)
        expected = {
            "coef_": (n_classes, n_features),
            "intercept_": (n_classes,),
            "oof_log_loss_": (n_problems, len(self.c_grid_)),
            "floor_classes_": (n_floors,),
            "floor_probabilities_": (n_floors,),
        }
        for name in ("c_", "folds_", "n_iter_", "gradient_norm_", "objective_", "converged_"):
            expected[name] = (n_problems,)
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"its {name} has shape {getattr(self, name).shape}, not {shape}")


def save_arrays(path: Path | str, kind: str, content: dict[str, object]) -> None:
    """Write arrays, numbers and strings as an npz, whole or not at all.

    `np.savez` stamps every member with 1980-01-01, so equal content gives equal bytes.
    """
    arrays = {name: np.asarray(value) for name, value in content.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        raise ValueError("a probe file holds plain arrays only.")
    with whole_or_absent(path) as part, part.open("wb") as handle:
        np.savez(handle, kind=np.asarray(f"crsbench probe: {kind}"), **arrays)


def load_arrays(path: Path | str, kind: str, names: set[str]) -> dict[str, np.ndarray]:
    """The arrays of a file that `save_arrays` wrote with this kind and these names."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise UserError(f"the probe file {path} does not exist.") from error
    except _DAMAGE as error:
        raise _unreadable(path, str(error)) from error
    found = str(arrays.pop("kind", "of no known kind"))
    if found != f"crsbench probe: {kind}":
        raise _unreadable(path, f"it is {found}, not crsbench probe: {kind}")
    if set(arrays) != names:
        raise _unreadable(path, f"its arrays are {sorted(arrays)}, not {sorted(names)}")
    return arrays


def _unreadable(path: Path | str, reason: str) -> UserError:
    return UserError(f"{path} is no readable probe file ({reason}); delete it and rerun.")
