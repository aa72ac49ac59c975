"""The few places of a text where something is asked, drawn together and put back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PositionSubset:
    """At most M places in a row of T: what is computed for them alone costs M, not T."""

    positions: Tensor
    """(B, M) each row's places in reading order, others behind them; no place twice."""
    is_real: Tensor
    """(B, M) bool: false where a row has fewer."""

    @classmethod
    def from_mask(cls, wanted: Tensor) -> PositionSubset:
        """Those where `wanted` (B, T) is true."""
        count = wanted.sum(1)
        most = int(count.max())
        places = wanted.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        return cls(places, torch.arange(most, device=places.device) < count[:, None])

    def gather_entries(self, values: Tensor) -> Tensor:
        """(B, M) the entries of these places of (B or 1, T)."""
        return values.expand(len(self.positions), -1).gather(1, self.positions)

    def gather(self, values: Tensor) -> Tensor:
        """(B, M, W) the vectors of these places of (B, T, W), or the rows of a mask."""
        return values.gather(1, self._wide(values))

    def scatter_back(self, values: Tensor, time: int) -> Tensor:
        """(B, T, W) vectors (B, M, W) at their places, zero where nothing is asked."""
        spread = values.new_zeros(len(values), time, values.shape[-1])
        return spread.scatter(1, self._wide(values), values * self.is_real[..., None])

    def _wide(self, values: Tensor) -> Tensor:
        return self.positions[..., None].expand(-1, -1, values.shape[-1])
