"""Unique inputs: position-wise computations are done once for equal inputs."""

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
