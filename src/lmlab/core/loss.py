"""A loss is a total and a count, divided once, over all batches and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

IGNORE_LABEL = -100
"""Marks places of which nothing is told."""


@dataclass(frozen=True)
class Loss:
    """What training minimises: `total` summed over `count` predictions.

    A mean of means would weigh short batches too much; so nothing divides before the optimiser
    does. `parts` names the contributions of an objective that is a list, each already in `total`.
    """

    total: Tensor
    count: Tensor
    parts: Mapping[str, Loss] = field(default_factory=dict)

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)
