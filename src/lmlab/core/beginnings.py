"""Texts that begin alike: what is read from left to right of a common beginning is the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORTH = 0.95
"""Beginnings are told apart where they are at most so large a share of the places."""


@dataclass(frozen=True, eq=False)
class Beginnings:
    """The U different beginnings s_0 … s_t of the rows of (B, T) tokens.

    A model that reads from left to right makes the same of each wherever it stands, so it need be
    asked but once: captions that all begin with "a man", the two texts of a minimal pair.
    """

    index: Tensor
    """(B, T) the number of the beginning that ends at each place; any number at padding."""
    firsts: Tensor
    """(U,) one place where each ends, as a number b · T + t."""

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor) -> Beginnings | None:
        """Those of rows (B, T) of `lengths` (B,); None where few are alike. Cost O(B T log B)."""
        if tokens.ndim != 2 or not tokens.numel() or torch.is_grad_enabled():
            return None
        time = tokens.shape[1]
        real = torch.arange(time, device=tokens.device) < lengths[:, None]
        rows, which = torch.unique(tokens.masked_fill(~real, -1), dim=0, return_inverse=True)
        # In rows that are sorted, a beginning is new where it differs from the row above.
        new = torch.ones_like(rows, dtype=torch.bool)
        new[1:] = (rows[1:] != rows[:-1]).int().cummax(1).values.bool()
        new &= rows >= 0
        count = int(new.sum())
        if count > WORTH * tokens.numel():
            return None
        numbers = new.flatten().cumsum(0).view_as(rows) - 1
        index = numbers.masked_fill(~new, 0).cummax(0).values
        owner = torch.empty(len(rows), dtype=torch.long, device=tokens.device)
        owner[which] = torch.arange(len(tokens), device=tokens.device)
        row, place = new.nonzero(as_tuple=True)
        return cls(index[which], owner[row] * time + place)

    def gather(self, values: Tensor) -> Tensor:
        """(1, U, …) of each beginning what stands where it ends, of values (B, T, …)."""
        return values.flatten(0, 1)[self.firsts][None]

    def spread(self, values: Tensor) -> Tensor:
        """(B, T, …) what was computed of the beginnings, (1, U, …), wherever they stand."""
        return values[0][self.index]

    @property
    def at_first(self) -> Tensor:
        """(B, T) bool: true at the one place that stands for its beginning."""
        chosen = torch.zeros(self.index.numel(), dtype=torch.bool, device=self.index.device)
        chosen[self.firsts] = True
        return chosen.view_as(self.index)
