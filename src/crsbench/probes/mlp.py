"""Control probe: a two-layer perceptron with early stopping inside the labelled subset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from crsbench.core.hashing import sha256_number
from crsbench.metrics.arrays import UNKNOWN, IntArray
from crsbench.probes.fitted import (
    Decisions,
    by_blocks,
    check_c_grid,
    class_floors,
    default_c,
    load_probe,
    save_probe,
)
from crsbench.probes.folds import assign_folds
from crsbench.probes.logistic import check_features, check_truth


@dataclass(frozen=True)
class PerceptronSettings:
    """How the perceptron is fitted, the same for every encoder.

    c_grid : candidate inverse strengths of the L2 penalty, ascending: the logistic probe's grid, so
        that both probes have the same budget of configurations.
    hidden : width of the hidden layer. learning_rate : of Adam. batch_rows : rows per step.
    max_epochs : most passes over the rows. patience : epochs without improvement before a stop.
    folds : one fold in this many is held out for early stopping and the choice of C.
    time_cap_seconds : wall time of the selection; the refit follows with its epochs.
    seed : of the initial weights and the order of the rows.
    device : "cpu" or a CUDA device.
    """

    c_grid: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    hidden: int = 256
    learning_rate: float = 1e-3
    batch_rows: int = 256
    max_epochs: int = 100
    patience: int = 10
    folds: int = 5
    time_cap_seconds: float = 3600.0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_c_grid(self.c_grid)
        for name in ("hidden", "batch_rows", "max_epochs", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True, eq=False)
class FittedPerceptron:
    """relu(x hidden_weights + hidden_bias) output_weights + output_bias, then probabilities.

    hidden_weights_ (d, h), hidden_bias_ (h,), output_weights_ (h, K), output_bias_ (K,).
    c_ (1,) : the chosen C; NaN where there is nothing to fit. epochs_ : of the refit.
    c_grid_, validation_log_loss_ (S,) : each C and its least mean held-out log-loss; NaN where
        nothing could be held out.
    folds_ (1,) : one in this many folds was held out; 0 where none could be made.
    converged_ (1,) : the chosen C had stopped improving before the last epoch allowed.
    n_train_, capped_, floor_classes_, floor_probabilities_, task : as in `FittedProbe`.
    """

    task: str
    hidden_weights_: np.ndarray
    hidden_bias_: np.ndarray
    output_weights_: np.ndarray
    output_bias_: np.ndarray
    c_: np.ndarray
    c_grid_: np.ndarray
    validation_log_loss_: np.ndarray
    epochs_: int
    folds_: np.ndarray
    converged_: np.ndarray
    n_train_: int
    capped_: bool
    floor_classes_: np.ndarray
    floor_probabilities_: np.ndarray

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (m, K), float64, of features (m, d) standardised as in training."""
        return self.predict(features)[0]

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities and log-odds, (m, K) each."""
        logits = by_blocks(features, len(self.hidden_weights_), self._logits)
        decided = Decisions(self.task, logits, self.floor_classes_, self.floor_probabilities_)
        return decided.probabilities(), decided.log_odds()

    def _logits(self, block: np.ndarray) -> np.ndarray:
        # h = max(x W1 + b1, 0), (m, h); logits = h W2 + b2, (m, K)
        hidden = np.maximum(block @ self.hidden_weights_ + self.hidden_bias_, 0.0)
        logits: np.ndarray = hidden @ self.output_weights_ + self.output_bias_
        return logits

    def save(self, path: Path | str) -> None:
        """Write an npz without pickle; equal probes give equal bytes."""
        save_probe(path, "perceptron", self)

    @classmethod
    def load(cls, path: Path | str) -> FittedPerceptron:
        """Read what `save` wrote; raises UserError naming the file when it is anything else."""
        return load_probe(path, "perceptron", cls)

    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape that each array must have, given the others."""
        n_features, hidden = self.hidden_weights_.shape
        n_classes, n_floors = len(self.output_bias_), len(self.floor_classes_)
        return {
            "hidden_weights_": (n_features, hidden),
            "hidden_bias_": (hidden,),
            "output_weights_": (hidden, n_classes),
            "output_bias_": (n_classes,),
            "c_": (1,),
            "validation_log_loss_": (len(self.c_grid_),),
            "folds_": (1,),
            "converged_": (1,),
            "floor_classes_": (n_floors,),
            "floor_probabilities_": (n_floors,),
        }


def fit_perceptron(
    features: np.ndarray,
    truth: np.ndarray,
    groups: np.ndarray,
    task: str,
    settings: PerceptronSettings | None = None,
) -> FittedPerceptron:
    """Fit a perceptron with one hidden layer of rectified units on the given rows.

    Arguments, floors and errors as in `crsbench.probes.selection.fit_probe`. The objective is the
    logistic probe's, sum of log-losses (of the known labels) + ||weights||^2 / (2 C) without the
    biases, minimised by Adam. Every C of the grid is trained at once from the same start on the
    rows outside one fold; the fold's log-loss stops each and chooses C and the number of epochs (a
    tie: the smaller C), with which all rows are refitted. All labels share the hidden layer, hence
    C and the epochs; the fold is stratified by each row's rarest positive label. Where no two folds
    can be made: the middle C for `max_epochs`.

    The order of the rows is drawn from the seed, so another order of the input is another, equally
    good, draw; the same input gives the same bits.
    """
    settings = settings or PerceptronSettings()
    features, truth, groups = np.asarray(features), np.asarray(truth), np.asarray(groups)
    check_features(features)
    known = (truth != UNKNOWN) | (task != "multilabel")
    truth = np.where(known, truth, 0)
    check_truth(truth, len(features), task)
    floors = class_floors(truth.sum(0, dtype=np.int64), known.sum(0), task)
    fitted = np.flatnonzero(np.isnan(floors))
    fold, n_folds = assign_folds(_strata(truth, task), groups, settings.folds)
    rows = _Rows(features, truth[:, fitted], known[:, fitted], task, settings)
    nothing = len(fitted) < (2 if task == "multiclass" else 1)
    if nothing or not n_folds:
        choice = _without_validation(settings)
    else:
        choice = _choose(rows, fold == 0, settings)
    epochs = 0 if nothing else choice.epochs
    network = _Network(rows, [choice.c], settings)
    everything = torch.arange(len(features), device=rows.features.device)
    for _ in range(epochs):
        network.train_epoch(everything)
    floor_classes = np.flatnonzero(~np.isnan(floors))
    return FittedPerceptron(
        task=task,
        **network.first_weights(fitted, truth.shape[1]),
        c_=np.array([np.nan if nothing else choice.c]),
        c_grid_=np.asarray(settings.c_grid),
        validation_log_loss_=choice.log_loss,
        epochs_=epochs,
        folds_=np.array([n_folds]),
        converged_=np.array([nothing or choice.converged]),
        n_train_=len(features),
        capped_=choice.capped,
        floor_classes_=floor_classes,
        floor_probabilities_=floors[floor_classes],
    )


def _strata(truth: np.ndarray, task: str) -> np.ndarray:
    """One number per row to stratify by: the class, or the rarest positive label (-1 if none)."""
    if task == "multiclass":
        return np.asarray(truth.argmax(1))
    by_rarity = np.argsort(truth.sum(0, dtype=np.int64), kind="stable")
    rarest: IntArray = by_rarity[truth[:, by_rarity].argmax(1)]  # argmax: the first that is 1
    return np.where(truth.any(1), rarest, -1)


class _Rows:
    """Features (n, d), truth and known (n, fitted classes) as tensors, and their log-loss."""

    def __init__(
        self,
        features: np.ndarray,
        truth: np.ndarray,
        known: np.ndarray,
        task: str,
        settings: PerceptronSettings,
    ) -> None:
        self.features = torch.tensor(features, dtype=torch.float32, device=settings.device)
        self.truth = torch.tensor(truth, dtype=torch.float32, device=settings.device)
        self.known = torch.tensor(known, dtype=torch.float32, device=settings.device)
        self.multiclass = task == "multiclass"

    def log_loss(self, logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Summed log-loss (S,) of logits (S, b, K) for the rows `at` (b,)."""
        truth = self.truth[at]
        # -sum_k y_k ln p_k; per label ln(1 + e^z) - y z, over the known ones
        if self.multiclass:
            return -(functional.log_softmax(logits, dim=2) * truth).sum((1, 2))
        return ((functional.softplus(logits) - logits * truth) * self.known[at]).sum((1, 2))


class _Network:
    """S networks of one shape from one start, each with its C, trained side by side."""

    def __init__(self, rows: _Rows, c_grid: Sequence[float], settings: PerceptronSettings) -> None:
        self._rows, self._settings = rows, settings
        self._random = torch.Generator().manual_seed(sha256_number("mlp", settings.seed) >> 1)
        d, k, h = rows.features.shape[1], rows.truth.shape[1], settings.hidden
        # He et al. 2015 (arXiv:1502.01852) for the hidden layer: normal deviates of variance 2 / d.
        # The output layer starts at zero.
        start = torch.randn((d, h), generator=self._random) * (2.0 / d) ** 0.5
        layers = (start, torch.zeros(1, h), torch.zeros(h, k), torch.zeros(1, k))
        self._weights = [
            layer.to(rows.features.device).repeat(len(c_grid), 1, 1).requires_grad_()
            for layer in layers
        ]
        # Of each C: sum_i loss_i + (||W1||^2 + ||W2||^2) / (2 C), the logistic probe's objective.
        self._penalty = torch.tensor([0.5 / c for c in c_grid], device=rows.features.device)
        self._optimiser = torch.optim.Adam(self._weights, lr=settings.learning_rate)

    def train_epoch(self, allowed: torch.Tensor) -> None:
        """One pass over the rows `allowed`, in an order of its own."""
        order = allowed[torch.randperm(len(allowed), generator=self._random).to(allowed.device)]
        hidden, _, output, _ = self._weights
        for batch in torch.split(order, self._settings.batch_rows):
            # mean loss of the batch + ||W||^2 / (2 C n): the objective, divided by its n rows
            data = self._rows.log_loss(self._logits(batch), batch) / len(batch)
            norms = hidden.square().sum((1, 2)) + output.square().sum((1, 2))
            self._optimiser.zero_grad()
            # The networks share no weight: the gradient of the sum is each one's own.
            torch.autograd.backward((data + self._penalty * norms / len(allowed)).sum())
            self._optimiser.step()

    @torch.no_grad()
    def mean_log_loss(self, at: torch.Tensor) -> np.ndarray:
        """Mean log-loss (S,) of the rows `at`, in float64."""
        losses = [self._rows.log_loss(self._logits(b), b).double() for b in torch.split(at, 4096)]
        return (torch.stack(losses).sum(0) / len(at)).cpu().numpy()

    def _logits(self, at: torch.Tensor) -> torch.Tensor:
        hidden, hidden_bias, output, output_bias = self._weights
        inputs = self._rows.features[at].expand(len(hidden), -1, -1)
        return torch.baddbmm(output_bias, torch.baddbmm(hidden_bias, inputs, hidden).relu(), output)

    def first_weights(self, fitted: np.ndarray, n_classes: int) -> dict[str, np.ndarray]:
        """The first network's layers, with zeros for the classes that are not fitted."""
        layers = [layer[0].detach().double().cpu().numpy() for layer in self._weights]
        hidden, hidden_bias, output, output_bias = layers
        all_output = np.zeros((len(output), n_classes))
        all_output[:, fitted] = output
        all_bias = np.zeros(n_classes)
        all_bias[fitted] = output_bias[0]
        return {
            "hidden_weights_": hidden,
            "hidden_bias_": hidden_bias[0],
            "output_weights_": all_output,
            "output_bias_": all_bias,
        }


@dataclass(frozen=True)
class _Choice:
    """The configuration to refit, and how it was found."""

    c: float
    epochs: int
    log_loss: np.ndarray
    converged: bool
    capped: bool


def _without_validation(settings: PerceptronSettings) -> _Choice:
    unknown = np.full(len(settings.c_grid), np.nan)
    return _Choice(default_c(settings.c_grid), settings.max_epochs, unknown, True, False)


def _choose(rows: _Rows, held_out: np.ndarray, settings: PerceptronSettings) -> _Choice:
    """Train every C outside the fold and stop each by the fold's log-loss."""
    deadline = time.monotonic() + settings.time_cap_seconds
    device = rows.features.device
    train, test = (torch.from_numpy(x.nonzero()[0]).to(device) for x in (~held_out, held_out))
    network = _Network(rows, settings.c_grid, settings)
    best = network.mean_log_loss(test)
    best_epoch = np.zeros(len(best), dtype=np.int64)
    epoch, capped = 0, False
    going = np.ones(len(best), dtype=bool)
    while going.any() and epoch < settings.max_epochs and not capped:
        epoch += 1
        network.train_epoch(train)
        loss = network.mean_log_loss(test)
        better = going & (loss < best)
        best, best_epoch = np.where(better, loss, best), np.where(better, epoch, best_epoch)
        going &= epoch - best_epoch < settings.patience
        capped = bool(going.any()) and time.monotonic() > deadline
    chosen = int(best.argmin())
    return _Choice(
        settings.c_grid[chosen], int(best_epoch[chosen]), best, not bool(going[chosen]), capped
    )
