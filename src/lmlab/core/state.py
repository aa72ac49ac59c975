"""What a system remembers between steps, as a batch that can be forked and reordered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from torch import Tensor


@runtime_checkable
class State(Protocol):
    """The memory of B sequences under way."""

    def select(self, rows: Tensor) -> Self:
        """The state of the given rows, in that order, repeats allowed: forks a beam."""
        ...

    def detach(self) -> Self:
        """The same values with no gradient to the past."""
        ...


@dataclass(frozen=True, eq=False)
class TensorState:
    """A state that is a handful of named tensors, batch first: (B, …)."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def select(self, rows: Tensor) -> TensorState:
        return TensorState({name: value[rows] for name, value in self.tensors.items()})

    def detach(self) -> TensorState:
        return TensorState({name: value.detach() for name, value in self.tensors.items()})
