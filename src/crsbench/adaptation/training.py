"""The training loop: AdamW on the updates and a linear head, the same bytes after any kill."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.data import DataLoader

from crsbench.adaptation.lora import lora_parameters
from crsbench.adaptation.settings import Recipe
from crsbench.core.errors import UserError
from crsbench.core.files import atomic_write
from crsbench.core.hashing import sha256_number
from crsbench.core.progress import progress
from crsbench.encoders import LoadedEncoder
from crsbench.features.extraction import FLOAT32, ImageViews
from crsbench.metrics.discrimination import macro_auroc
from crsbench.probes.fitted import class_floors
from crsbench.weights.tensors import sha256_of_tensors

CACHED_BYTES = 2 << 30
"""Decoded pixels that a training keeps in memory, so that later epochs decode less."""

T = TypeVar("T")


@dataclass(frozen=True)
class Labelled:
    """The n images of a training: views, labels, and who fits and who chooses the epoch.

    name: encoder, data set, seed and fraction, for messages; images: their clean views; truth:
    (n, K) int8, -1 unknown; fit, validation: rows; order_key: what the order of the images depends
    on, the same for every encoder.
    """

    name: str
    task: str
    classes: tuple[str, ...]
    images: ImageViews
    truth: np.ndarray
    fit: np.ndarray
    validation: np.ndarray
    order_key: tuple[object, ...]

    def order(self, epoch: int) -> list[int]:
        """The rows to fit on in the order of an epoch: by a hash of their ids."""
        ids = self.images.image_ids
        key = {row: sha256_number("order", *self.order_key, epoch, ids[row]) for row in self.fit}
        return [int(row) for row in sorted(self.fit, key=key.__getitem__)]

    def mirrored(self, rows: Sequence[int], epoch: int) -> np.ndarray:
        """Mask of those rows that an epoch with `flip` mirrors."""
        ids = self.images.image_ids
        keys = [sha256_number("flip", *self.order_key, epoch, ids[row]) for row in rows]
        return np.array([key % 2 == 1 for key in keys])

    @cached_property
    def floors(self) -> np.ndarray:
        """(K,): the constant of each class or label that cannot be fitted, NaN for the others."""
        known = self.truth[self.fit]
        members, counted = (known == 1).sum(axis=0), (known >= 0).sum(axis=0)
        n_rows = len(known) if self.task == "multiclass" else counted
        return class_floors(members, n_rows, self.task)


class PixelCache:
    """The pixels of images by row, decoded ahead by workers, kept as long as there is room."""

    def __init__(self, images: ImageViews, workers: int) -> None:
        self._images, self._workers = images, workers
        self._kept: dict[int, np.ndarray] = {}
        self._bytes = 0

    def in_order(self, rows: Sequence[int]) -> Iterator[np.ndarray]:
        """Raises UserError naming an image that can't be read."""
        absent = [row for row in rows if row not in self._kept]
        loader = DataLoader(
            self._images, batch_size=None, sampler=absent, num_workers=self._workers
        )
        decoded = iter(loader) if absent else iter(())
        for row in rows:
            if row in self._kept:
                yield self._kept[row]
                continue
            item = next(decoded)
            if isinstance(item, UserError):
                raise item
            pixels = np.asarray(item.arrays[0])[0]
            if self._bytes + pixels.nbytes <= CACHED_BYTES:
                self._kept[row] = pixels
                self._bytes += pixels.nbytes
            yield pixels


class Adapted(torch.nn.Module):
    """An encoder with updates under a linear head on its standardised feature.

    The head is zero at first. mean, scale: (d,) of the frozen features.
    """

    def __init__(
        self, encoder: LoadedEncoder, mean: np.ndarray, scale: np.ndarray, n_classes: int
    ) -> None:
        super().__init__()
        self.encode, self.preprocessing = encoder.encode, encoder.preprocessing
        self.head = torch.nn.Linear(len(mean), n_classes)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))

    def forward(self, pixels: torch.Tensor, precision: str) -> torch.Tensor:
        """(n, size, size, 3) pixels to (n, K) logits."""
        images = self.preprocessing.normalise(pixels)
        reduced = precision != FLOAT32
        with torch.autocast(pixels.device.type, getattr(torch, precision), enabled=reduced):
            features = self.encode(images)
        return self.head((features.float() - self.mean) / self.scale)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        updates = {f"encode.{name}": p for name, p in lora_parameters(self.encode).items()}
        return updates | {f"head.{name}": p for name, p in self.head.named_parameters()}


@dataclass
class Progress:
    """Where a training stands after `epoch` epochs; all that a resumed one needs.

    best: the trained tensors of the best epoch so far, or none; micro_batch: images that pass the
    model at once.
    """

    micro_batch: int
    epoch: int = 0
    best_epoch: int = 0
    best_loss: float = float("inf")
    history: list[dict[str, float | int | None]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)


def train(
    model: Adapted,
    labelled: Labelled,
    recipe: Recipe,
    *,
    checkpoint: Path,
    identity: str,
    device: torch.device,
    workers: int,
) -> Progress:
    """Train, and leave the model at its best epoch: that of the lowest log-loss on validation.

    Without validation images it is the last. After each epoch the state goes to `checkpoint`; one
    that is there and has the same `identity` is gone on from. Raises UserError for a loss that is
    not finite, for an image that can't be read, and when one image alone is too much for memory.
    """
    parameters = model.trained()
    optimizer = torch.optim.AdamW(_groups(parameters, recipe), betas=(0.9, 0.999), eps=1e-8)
    state = Progress(recipe.batch_size)
    _load(checkpoint, identity, parameters, optimizer, state)
    pixels = PixelCache(labelled.images, workers)
    loop = _Loop(model, labelled, recipe, optimizer, pixels, device, state)
    while state.epoch < recipe.epochs:
        loss = loop.fit_epoch(state.epoch)
        validation = loop.validate()
        state.epoch += 1
        state.history.append({"epoch": state.epoch, "loss": loss, **validation})
        chosen = validation["validation_log_loss"]
        if chosen is None or chosen < state.best_loss:
            state.best_loss = float("inf") if chosen is None else chosen
            state.best_epoch = state.epoch
            state.best = {name: p.detach().cpu().clone() for name, p in parameters.items()}
        _save(checkpoint, identity, parameters, optimizer, state)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state.best[name])
    return state


def _groups(parameters: Mapping[str, torch.nn.Parameter], recipe: Recipe) -> list[dict[str, Any]]:
    rates = {"encode.": recipe.learning_rate_lora, "head.": recipe.learning_rate_head}
    return [
        {
            "params": [p for name, p in parameters.items() if name.startswith(prefix)],
            "lr": rate,
            "highest": rate,
            "weight_decay": recipe.weight_decay,
        }
        for prefix, rate in rates.items()
    ]


@dataclass
class _Loop:
    model: Adapted
    labelled: Labelled
    recipe: Recipe
    optimizer: torch.optim.Optimizer
    pixels: PixelCache
    device: torch.device
    state: Progress

    def fit_epoch(self, epoch: int) -> float:
        """One pass over the images that are fitted on; the mean loss of its images."""
        rows = self.labelled.order(epoch)
        size = self.recipe.batch_size
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        items = self.pixels.in_order(rows)
        label = f"{self.labelled.name}, epoch {epoch + 1} of {self.recipe.epochs}"
        total = 0.0
        for number, batch in enumerate(progress(batches, label, len(batches), "step")):
            step = epoch * len(batches) + number
            for group in self.optimizer.param_groups:
                group["lr"] = group["highest"] * self.recipe.rate(
                    step, self.recipe.epochs * len(batches)
                )
            images = self._batch(items, batch, epoch)
            loss = self._whole(lambda images=images, batch=batch: self._gradients(images, batch))
            self._require_finite(loss, f"in step {number + 1} of epoch {epoch + 1}")
            self.optimizer.step()
            total += loss * len(batch)
        return total / len(rows)

    def _require_finite(self, loss: float, when: str) -> None:
        if not np.isfinite(loss):
            raise UserError(
                f"The loss of {self.labelled.name} is {loss} {when}; lower "
                f"adaptation.learning_rate_lora ({self.recipe.learning_rate_lora:g}) or set "
                f"adaptation.precision: float32 ({self.recipe.precision} was used)."
            )

    def _batch(self, items: Iterator[np.ndarray], rows: Sequence[int], epoch: int) -> torch.Tensor:
        images = np.stack([next(items) for _ in rows])
        if self.recipe.flip:
            mirrored = self.labelled.mirrored(rows, epoch)
            images[mirrored] = images[mirrored, :, ::-1]
        return torch.from_numpy(images)

    def _whole(self, work: Callable[[], T]) -> T:
        """Do a piece of work; where memory runs out, do it anew with half as many images at once.

        A step still takes all images of its batch: its gradients are summed over the parts.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                if self.state.micro_batch == 1:
                    raise UserError(
                        f"{self.labelled.name}: the memory of {self.device} does not hold one "
                        "image; set adaptation.checkpoint_activations: true or adapt it on a "
                        "larger device."
                    ) from error
            self.state.micro_batch //= 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            print(
                f"{self.labelled.name}: out of memory; now {self.state.micro_batch} images at once "
                f"(a step still takes {self.recipe.batch_size}).",
                flush=True,
            )

    def _gradients(self, images: torch.Tensor, rows: Sequence[int]) -> float:
        """Set the gradients of the mean loss over a batch; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        truth = self.labelled.truth[np.asarray(rows)]
        weight = 1 / max(1, _n_terms(truth, self.labelled))
        total = 0.0
        for start in range(0, len(rows), self.state.micro_batch):
            part = slice(start, start + self.state.micro_batch)
            logits = self.model(images[part].to(self.device), self.recipe.precision)
            loss = loss_sum(logits, truth[part], self.labelled) * weight
            loss.backward()
            total += float(loss.detach())
        for name, parameter in self.model.trained().items():
            if parameter.grad is None:
                raise UserError(
                    f"{self.labelled.name}: no gradient reaches {name}; the encoder does not call "
                    "that module, choose others by adaptation.target_modules."
                )
        return total

    @torch.no_grad()
    def validate(self) -> dict[str, float | None]:
        """Log-loss and macro-AUROC of the validation images; None where there are none."""
        rows = [int(row) for row in self.labelled.validation]
        if not rows:
            return {"validation_log_loss": None, "validation_macro_auroc": None}
        size = self.recipe.batch_size
        items, logits = self.pixels.in_order(rows), []
        for start in range(0, len(rows), size):
            images = torch.from_numpy(np.stack([next(items) for _ in rows[start : start + size]]))
            logits += self._whole(lambda images=images: self._forward(images))
        found, truth = torch.cat(logits), self.labelled.truth[np.asarray(rows)]
        loss = float(loss_sum(found, truth, self.labelled)) / max(1, _n_terms(truth, self.labelled))
        self._require_finite(loss, f"on the validation images of epoch {self.state.epoch + 1}")
        scores = found.softmax(dim=1) if self.labelled.task == "multiclass" else found
        auroc = macro_auroc(truth, scores.cpu().numpy().astype(np.float64))
        return {
            "validation_log_loss": loss,
            "validation_macro_auroc": None if np.isnan(auroc) else float(auroc),
        }

    def _forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [
            self.model(part.to(self.device), self.recipe.precision)
            for part in images.split(self.state.micro_batch)
        ]


def loss_sum(logits: torch.Tensor, truth: np.ndarray, labelled: Labelled) -> torch.Tensor:
    """Cross-entropy summed over images (multiclass) or over images and their known labels.

    Classes and labels that are at their floor are left out, and images of such a class.
    """
    fitted = np.isnan(labelled.floors)
    wanted = torch.from_numpy(truth[:, fitted].astype(np.float32)).to(logits.device)
    logits = logits[:, torch.from_numpy(fitted).to(logits.device)]
    if labelled.task == "multiclass":
        return -(wanted * logits.log_softmax(dim=1)).sum()
    known = wanted >= 0
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logits[known], wanted[known], reduction="sum"
    )


def _n_terms(truth: np.ndarray, labelled: Labelled) -> int:
    known = truth[:, np.isnan(labelled.floors)]
    return int((known == 1).sum() if labelled.task == "multiclass" else (known >= 0).sum())


# --- checkpoints ---


def _save(
    file: Path,
    identity: str,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: Progress,
) -> None:
    tensors = {f"best/{name}": tensor for name, tensor in state.best.items()}
    for name, parameter in parameters.items():
        tensors[f"now/{name}"] = parameter.detach()
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state[parameter].items()}
    kept = {
        name: getattr(state, name)
        for name in ("micro_batch", "epoch", "best_epoch", "best_loss", "history")
    }
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    progress = json.dumps(kept)
    digest = sha256_of_tensors(tensors, salt=progress)  # the format itself has none
    metadata = {"identity": identity, "progress": progress, "sha256": digest}
    with atomic_write(file) as part:
        save_file(tensors, part, metadata=metadata)


def _load(
    file: Path,
    identity: str,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: Progress,
) -> None:
    """Go on from a checkpoint; one that is absent, not whole or of another training is none."""
    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return
    if metadata.get("identity") != identity:
        return
    written = metadata.get("progress", "")
    if metadata.get("sha256") != sha256_of_tensors(tensors, salt=written):
        return
    for name, value in json.loads(written).items():
        setattr(state, name, value)
    moments = copy.copy(optimizer.state_dict())
    of_name = {name: number for number, name in enumerate(parameters)}
    moments["state"] = {
        number: {key: tensors[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        for name, number in of_name.items()
    }
    optimizer.load_state_dict(moments)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"now/{name}"])
    state.best = {name: tensors[f"best/{name}"] for name in parameters if f"best/{name}" in tensors}
