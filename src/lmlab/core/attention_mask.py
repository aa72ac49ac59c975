"""What the layers of a backbone look at, where that is less than a view allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMask:
    """What one layer looks at, where it is less than a view allows, and words meet by helpers."""

    allowed: Tensor
    """(T + N, T + N) bool: entry (i, j) is true where i looks at j; T words, then N helpers."""
    auxiliary_nodes: tuple[str, ...]
    """What the N places that the network puts beside the words are called."""


class AttentionMask(Protocol):
    """A rule of sight over a padded batch."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        """(B, T, T) bool: entry (b, i, j) is true where place i may use the input at place j."""
        ...


def _inside(lengths: Tensor, time: int) -> Tensor:
    """(B, 1, T) bool: true at real places, false at padding."""
    return (torch.arange(time, device=lengths.device)[None, :] < lengths[:, None])[:, None, :]


@dataclass(frozen=True)
class CausalMask:
    """Each place sees itself and what came before, at most `window` inputs of it."""

    window: int | None = None

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        place = torch.arange(time, device=lengths.device)
        back = place[:, None] - place[None, :]
        seen = back >= 0
        if self.window is not None:
            seen = seen & (back < self.window)
        return seen[None] & _inside(lengths, time)


@dataclass(frozen=True)
class FullMask:
    """Each place sees every real input."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return _inside(lengths, time).expand(-1, time, -1)


@dataclass(frozen=True)
class NoContextMask:
    """No place sees any input: a distribution without context."""

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return torch.zeros(len(lengths), time, time, dtype=torch.bool, device=lengths.device)


@dataclass(frozen=True, eq=False)
class ExplicitMask:
    """Any pattern, written out as (B, T, T) bool: permutations, prefixes, spans."""

    allowed: Tensor

    def mask(self, lengths: Tensor, time: int) -> Tensor:
        return self.allowed & _inside(lengths, time)
