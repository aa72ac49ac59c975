"""RNN attention to a source: dot, scaled, bilinear (Luong) and additive (Bahdanau) scores.

    p_i = softmax_i(score(q, k_i)),   c = Σ_i p_i v_i

Bahdanau et al. 2015, Luong et al. 2015.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

AttentionScoreName = Literal["dot", "scaled", "general", "additive"]
"""The type of a config field `score`."""


class DotAttention(nn.Module):
    """Dot-product attention score(q, k) = q · k (Luong et al. 2015); vectors of width W."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def keys(self, values: Tensor) -> Tensor:
        """(B, S, W) keys, computed once from the encoder states (B, S, W)."""
        return values

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T, S) scores of queries (B, T, W)."""
        return queries @ keys.transpose(1, 2)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts (B, T, W) and weights (B, T, S); `padding` (B, S) is true at padding."""
        scores = self.scores(queries, keys).masked_fill(padding[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return weights @ values, weights


class ScaledDotAttention(DotAttention):
    """Scaled dot-product attention score(q, k) = q · k / √W (Vaswani et al. 2017)."""

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().scores(queries, keys) / self.width**0.5


class BilinearAttention(DotAttention):
    """Bilinear ("general") attention score(q, k) = q · A k (Luong et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.matrix = nn.Linear(width, width, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        return self.matrix(values)


class AdditiveAttention(DotAttention):
    """Additive attention a · tanh(Q q + K k + b) (Bahdanau et al. 2015); T · S · W numbers."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.from_query = nn.Linear(width, width, bias=False)
        self.from_key = nn.Linear(width, width)
        self.weigh = nn.Linear(width, 1, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        return self.from_key(values)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        combined = self.from_query(queries)[:, :, None] + keys[:, None]
        return self.weigh(combined.tanh()).squeeze(-1)


RNN_ATTENTIONS: dict[AttentionScoreName, type[DotAttention]] = {
    "dot": DotAttention,
    "scaled": ScaledDotAttention,
    "general": BilinearAttention,
    "additive": AdditiveAttention,
}
