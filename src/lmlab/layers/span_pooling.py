"""Attention pooling of a span into one vector (Lee et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SpanPooling(nn.Module):
    """Span pooling s = Σ_t a_t x_t over the positions of a span, a = softmax(w · x_t).

    Learns to weight the span's head word (Lee et al. 2017). Cost O(M · L · W) for M spans of at
    most L positions.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, values: Tensor, rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """(M, W) of the spans from `first` to `last` (M,) in `rows` (M,) of values (B, T, W)."""
        if not len(rows):
            return values.new_zeros(0, values.shape[-1])
        longest = int((last - first).max()) + 1
        places = first[:, None] + torch.arange(longest, device=first.device)
        inside = places <= last[:, None]
        vectors = values[rows[:, None], places.minimum(last[:, None])]
        scores = self.score(vectors).squeeze(-1).masked_fill(~inside, -torch.inf)
        pooled: Tensor = (torch.softmax(scores, -1)[..., None] * vectors).sum(1)
        return pooled
