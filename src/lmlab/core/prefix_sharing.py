"""Texts that begin alike: what is read from left to right of a common beginning is the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.view import View

MAX_UNIQUE_SHARE = 0.95
"""Beginnings are told apart where they are at most so large a share of the places."""


@dataclass(frozen=True, eq=False)
class PrefixIndex:
    """The U different beginnings s_0 … s_t of the rows of (B, T) tokens.

    A model that reads from left to right makes the same of each wherever it stands, so it need be
    asked but once: captions that all begin with "a man", the two texts of a minimal pair.
    """

    index: Tensor
    """(B, T) the number of the beginning that ends at each place; any number at padding."""
    first_positions: Tensor
    """(U,) one place where each ends, as a number b · T + t."""

    @classmethod
    def from_tokens(cls, tokens: Tensor, lengths: Tensor) -> PrefixIndex | None:
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
        if count > MAX_UNIQUE_SHARE * tokens.numel():
            return None
        numbers = new.flatten().cumsum(0).view_as(rows) - 1
        index = numbers.masked_fill(~new, 0).cummax(0).values
        owner = torch.empty(len(rows), dtype=torch.long, device=tokens.device)
        owner[which] = torch.arange(len(tokens), device=tokens.device)
        row, place = new.nonzero(as_tuple=True)
        return cls(index[which], owner[row] * time + place)

    def gather(self, values: Tensor) -> Tensor:
        """(1, U, …) of each beginning what stands where it ends, of values (B, T, …)."""
        return values.flatten(0, 1)[self.first_positions][None]

    def expand(self, values: Tensor) -> Tensor:
        """(B, T, …) what was computed of the beginnings, (1, U, …), wherever they stand."""
        return values[0][self.index]

    def unique_prefixes(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The M different beginnings that end at the N true entries of `places` (B, T).

        (M,) one place where each ends, as a number b · T + t, and (N,) which of them each is.
        """
        numbers, which = torch.unique(self.index[places], return_inverse=True)
        return self.first_positions[numbers], which

    def unique_queries(self, targets: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the N true entries of `places` (B, T) need be asked for their `targets` (B, T).

        Of those that ask for one token after one beginning the first: (B, T) bool, and (N,) the
        number of the one that answers for each, both in reading order.
        """
        asked = places.flatten().nonzero()[:, 0]
        tokens = targets.flatten()[asked]
        keys = self.index.flatten()[asked] * (int(tokens.max()) + 1) + tokens
        _, which = torch.unique(keys, return_inverse=True)
        count = int(which.max()) + 1
        number = torch.arange(len(asked), device=asked.device)
        first = number.new_full((count,), len(asked)).scatter_reduce(0, which, number, "amin")
        kept = torch.zeros(places.numel(), dtype=torch.bool, device=asked.device)
        kept[asked[first]] = True
        return kept.view_as(places), first.argsort().argsort()[which]


def build_prefix_index(view: View) -> PrefixIndex | None:
    """The different beginnings of a view's rows, if each place is made of those before it alone."""
    causal = isinstance(view.attention_mask, CausalMask) and view.attention_mask.window is None
    plain = view.positions is None and view.segments is None and view.spans is None
    if not causal or not plain or view.decoder is not None:
        return None
    return PrefixIndex.from_tokens(view.inputs, view.lengths)
