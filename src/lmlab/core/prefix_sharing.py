"""Prefix sharing: causal models compute each distinct prefix of a batch only once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.view import View

MAX_UNIQUE_SHARE = 0.95
"""Prefixes are shared if at most this share of the positions is distinct."""


@dataclass(frozen=True, eq=False)
class PrefixIndex:
    """Index of the U distinct prefixes s_0 … s_t of the rows of (B, T) tokens.

    A causal model computes the same for each of them in every row, so once is enough: captions that
    all begin with "a man", the two texts of a minimal pair.
    """

    index: Tensor
    """(B, T) the number of the prefix that ends at each position; arbitrary at padding."""
    first_positions: Tensor
    """(U,) one position where each ends, as a number b · T + t."""

    @classmethod
    def from_tokens(cls, tokens: Tensor, lengths: Tensor) -> PrefixIndex | None:
        """Those of rows (B, T) of `lengths` (B,); None if few are shared. Cost O(B T log B)."""
        if tokens.ndim != 2 or not tokens.numel() or torch.is_grad_enabled():
            return None
        time = tokens.shape[1]
        inside = torch.arange(time, device=tokens.device) < lengths[:, None]
        rows, sorted_row = torch.unique(tokens.masked_fill(~inside, -1), dim=0, return_inverse=True)
        # In sorted rows, a prefix is new where it differs from the row above.
        is_new = torch.ones_like(rows, dtype=torch.bool)
        is_new[1:] = (rows[1:] != rows[:-1]).int().cummax(1).values.bool()
        is_new &= rows >= 0
        count = int(is_new.sum())
        if count > MAX_UNIQUE_SHARE * tokens.numel():
            return None
        prefix_ids = is_new.flatten().cumsum(0).view_as(rows) - 1
        index = prefix_ids.masked_fill(~is_new, 0).cummax(0).values
        source_row = torch.empty(len(rows), dtype=torch.long, device=tokens.device)
        source_row[sorted_row] = torch.arange(len(tokens), device=tokens.device)
        row, position = is_new.nonzero(as_tuple=True)
        return cls(index[sorted_row], source_row[row] * time + position)

    def gather(self, values: Tensor) -> Tensor:
        """(1, U, …) values (B, T, …) at one end of each prefix."""
        return values.flatten(0, 1)[self.first_positions][None]

    def expand(self, values: Tensor) -> Tensor:
        """(B, T, …) values (1, U, …) of the prefixes, at all their positions."""
        return values[0][self.index]

    def unique_prefixes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The M distinct prefixes that end at the N true entries of `mask` (B, T).

        (M,) one position where each ends, as a number b · T + t, and (N,) which of them each is.
        """
        prefix_ids, inverse = torch.unique(self.index[mask], return_inverse=True)
        return self.first_positions[prefix_ids], inverse

    def unique_queries(self, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct pairs of prefix and target among the N true entries of `mask` (B, T).

        (B, T) bool: the first of each pair, and (N,) the number of the pair of each entry, both in
        row-major order; `targets` is (B, T).
        """
        queried = mask.flatten().nonzero()[:, 0]
        tokens = targets.flatten()[queried]
        keys = self.index.flatten()[queried] * (int(tokens.max()) + 1) + tokens
        _, inverse = torch.unique(keys, return_inverse=True)
        count = int(inverse.max()) + 1
        order = torch.arange(len(queried), device=queried.device)
        first = order.new_full((count,), len(queried)).scatter_reduce(0, inverse, order, "amin")
        first_mask = torch.zeros(mask.numel(), dtype=torch.bool, device=queried.device)
        first_mask[queried[first]] = True
        return first_mask.view_as(mask), first.argsort().argsort()[inverse]


def build_prefix_index(view: View) -> PrefixIndex | None:
    """The distinct prefixes of a view's rows, if its attention is causal."""
    causal = isinstance(view.attention_mask, CausalMask) and view.attention_mask.window is None
    plain = view.positions is None and view.segments is None and view.spans is None
    if not causal or not plain or view.decoder is not None:
        return None
    return PrefixIndex.from_tokens(view.inputs, view.lengths)
