"""Decoding state of a batch, which can be forked and reordered (beam search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from torch import Tensor


@runtime_checkable
class State(Protocol):
    """The state of B unfinished sequences."""

    def select(self, rows: Tensor) -> Self:
        """The state of the given rows, in that order, repeats allowed (beam search)."""

    def detach(self) -> Self:
        """The same values, detached from the graph (truncated BPTT)."""


@dataclass(frozen=True, eq=False)
class TensorState:
    """A state of named tensors, batch first: (B, …)."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def select(self, rows: Tensor) -> TensorState:
        return TensorState({name: value[rows] for name, value in self.tensors.items()})

    def detach(self) -> TensorState:
        return TensorState({name: value.detach() for name, value in self.tensors.items()})
