"""Attention masks: causal (also windowed), bidirectional, none, explicit, sparser per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMask:
    """Attention mask of one layer that is sparser than the view's, with auxiliary nodes."""

    allowed: Tensor
    """(T + N, T + N) bool: true where i attends to j; T words, then N auxiliary nodes."""
    auxiliary_nodes: tuple[str, ...]
    """The names of the N auxiliary nodes that the network adds to the words."""


class AttentionMask(Protocol):
    """Attention mask of a padded batch."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        """(B, T, T) bool: entry (b, i, j) is true where position i may attend to position j."""


def _unpadded(lengths: Tensor, time: int) -> Tensor:
    """(B, 1, T) bool: true at unpadded positions."""
    return (torch.arange(time, device=lengths.device)[None, :] < lengths[:, None])[:, None, :]


@dataclass(frozen=True)
class CausalMask:
    """Causal mask: each position attends to itself and earlier ones, at most `window` inputs."""

    window: int | None = None

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        positions = torch.arange(time, device=lengths.device)
        distance = positions[:, None] - positions[None, :]
        allowed = distance >= 0
        if self.window is not None:
            allowed = allowed & (distance < self.window)
        return allowed[None] & _unpadded(lengths, time)


@dataclass(frozen=True)
class FullMask:
    """Bidirectional mask: each position attends to every unpadded input."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return _unpadded(lengths, time).expand(-1, time, -1)


@dataclass(frozen=True)
class NoContextMask:
    """No attention to any input: a distribution without context."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return torch.zeros(len(lengths), time, time, dtype=torch.bool, device=lengths.device)


@dataclass(frozen=True, eq=False)
class ExplicitMask:
    """Explicit mask (B, T, T) bool: permutations, prefixes, spans."""

    allowed: Tensor

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return self.allowed & _unpadded(lengths, time)
