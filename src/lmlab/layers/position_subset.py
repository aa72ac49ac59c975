"""Embed each distinct (token, position, segment) once; gather only predicted positions."""

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
        all_positions = positions.expand_as(inputs)
        segment_ids = torch.zeros_like(inputs) if segments is None else segments
        position_count, segment_count = int(all_positions.max()) + 1, int(segment_ids.max()) + 1
        keys = (inputs * position_count + all_positions) * segment_count + segment_ids
        unique, index = torch.unique(keys, return_inverse=True)
        if 2 * len(unique) > inputs.numel():
            return None
        rest, segment = (unique.div(segment_count, rounding_mode="floor"), unique % segment_count)
        return cls(
            rest.div(position_count, rounding_mode="floor")[None],
            (rest % position_count)[None],
            None if segments is None else segment[None],
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
    def from_mask(cls, mask: Tensor) -> PositionSubset:
        """The positions where a mask (B, T) is true."""
        count = mask.sum(1)
        max_count = int(count.max())
        positions = mask.int().argsort(dim=1, descending=True, stable=True)[:, :max_count]
        return cls(positions, torch.arange(max_count, device=positions.device) < count[:, None])

    def gather_entries(self, values: Tensor) -> Tensor:
        """(B, M) the entries of (B or 1, T) at these positions."""
        return values.expand(len(self.positions), -1).gather(1, self.positions)

    def gather(self, values: Tensor) -> Tensor:
        """(B, M, W) the vectors of (B, T, W) at these positions, or the rows of a mask."""
        return values.gather(1, self._index(values))

    def scatter_back(self, values: Tensor, time: int) -> Tensor:
        """(B, T, W) vectors (B, M, W) at their positions, zero elsewhere."""
        scattered = values.new_zeros(len(values), time, values.shape[-1])
        return scattered.scatter(1, self._index(values), values * self.is_real[..., None])

    def _index(self, values: Tensor) -> Tensor:
        return self.positions[..., None].expand(-1, -1, values.shape[-1])
