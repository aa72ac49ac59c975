"""Loss record: summed loss and its count, divided once over all batches and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

IGNORE_LABEL = -100
"""Marks unlabelled positions."""


@dataclass(frozen=True)
class Loss:
    """Summed training loss: `total` over `count` predictions.

    A mean of means would overweight short batches, so only the optimiser divides. `parts` names the
    terms of a multi-task objective, each already in `total`.
    """

    total: Tensor
    count: Tensor
    parts: Mapping[str, Loss] = field(default_factory=dict)

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)
