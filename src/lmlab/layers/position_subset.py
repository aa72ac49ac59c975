"""Position subset: gather the few positions that are predicted, and scatter them back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class UniqueInputs:
    """The U distinct inputs among (B, T), and their index."""

    inputs: Tensor
    """(1, U) token ids."""
    positions: Tensor
    """(1, U)"""
    segments: Tensor | None
    """(1, U), or None without segments."""
    index: Tensor
    """(B, T) indices into the distinct inputs."""

    @classmethod
    def from_inputs(
        cls, inputs: Tensor, positions: Tensor, segments: Tensor | None
    ) -> UniqueInputs | None:
        """Those of ids (B, T) at positions (B or 1, T); None if few repeat, or for vectors."""
        if inputs.ndim != 2 or positions.ndim != 2 or not inputs.numel():
            return None
        places = positions.expand_as(inputs)
        kinds = torch.zeros_like(inputs) if segments is None else segments
        most_places, most_kinds = int(places.max()) + 1, int(kinds.max()) + 1
        keys = (inputs * most_places + places) * most_kinds + kinds
        found, index = torch.unique(keys, return_inverse=True)
        if 2 * len(found) > inputs.numel():
            return None
        whole, kind = found.div(most_kinds, rounding_mode="floor"), found % most_kinds
        return cls(
            whole.div(most_places, rounding_mode="floor")[None],
            (whole % most_places)[None],
            None if segments is None else kind[None],
            index,
        )

    def expand(self, values: Tensor) -> Tensor:
        """(B, T, W) values (1, U, W) of the distinct inputs, at all their positions."""
        return values[0][self.index]


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
