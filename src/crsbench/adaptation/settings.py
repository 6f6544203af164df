"""How every encoder is adapted: one budget for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """The budget, the same for every encoder; the config's section `adaptation` says each value.

    rank, alpha: of the updates, whose product is scaled by alpha / rank. epochs: passes over
    the images that are fitted on. batch_size: images a step. learning_rate_lora,
    learning_rate_head: the highest of AdamW's, for the updates and the linear head.
    weight_decay: AdamW's. warmup: share of the steps in which the learning rate rises on a
    line; then it falls on half a cosine to 0. validation: share of the labelled images that
    choose the epoch. flip: whether half of the images of a step are mirrored left to right.
    precision: what a forward pass computes in, by autocast. checkpoint_activations: whether
    activations are computed again in the backward pass.
    """

    rank: int
    alpha: int
    epochs: int
    batch_size: int
    learning_rate_lora: float
    learning_rate_head: float
    weight_decay: float
    warmup: float
    validation: float
    flip: bool
    precision: str
    checkpoint_activations: bool

    @classmethod
    def from_settings(cls, section: Mapping[str, Any]) -> Recipe:
        """From the section `adaptation` of a config."""
        return cls(**{name: section[name] for name in cls.__dataclass_fields__})

    def rate(self, step: int, steps: int) -> float:
        """The learning rate's share of its highest value in step 0 … steps − 1."""
        rising = math.ceil(self.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        return (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising))) / 2
