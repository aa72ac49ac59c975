"""Position subset: gather the few positions that are predicted, and scatter them back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PositionSubset:
    """At most M positions in a row of T: computing only these costs M, not T."""

    positions: Tensor
    """(B, M) each row's positions in order, followed by fillers; all distinct."""
    is_real: Tensor
    """(B, M) bool: false at fillers."""

    @classmethod
    def from_mask(cls, wanted: Tensor) -> PositionSubset:
        """The positions where `wanted` (B, T) is true."""
        count = wanted.sum(1)
        most = int(count.max())
        places = wanted.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        return cls(places, torch.arange(most, device=places.device) < count[:, None])

    def gather_entries(self, values: Tensor) -> Tensor:
        """(B, M) the entries of (B or 1, T) at these positions."""
        return values.expand(len(self.positions), -1).gather(1, self.positions)

    def gather(self, values: Tensor) -> Tensor:
        """(B, M, W) the vectors of (B, T, W) at these positions, or the rows of a mask."""
        return values.gather(1, self._wide(values))

    def scatter_back(self, values: Tensor, time: int) -> Tensor:
        """(B, T, W) vectors (B, M, W) at their positions, zero elsewhere."""
        spread = values.new_zeros(len(values), time, values.shape[-1])
        return spread.scatter(1, self._wide(values), values * self.is_real[..., None])

    def _wide(self, values: Tensor) -> Tensor:
        return self.positions[..., None].expand(-1, -1, values.shape[-1])
