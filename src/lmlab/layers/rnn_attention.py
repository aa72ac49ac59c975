"""Glances at a source: a mean of what was read, weighted by how well each place fits a query.

    p_i = softmax_i(score(q, k_i)),   c = Σ_i p_i v_i

Bahdanau et al. 2015, Luong et al. 2015; 002 §3.5.1. The ways to score are parts of their own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

AttentionScoreName = Literal["dot", "scaled", "general", "additive"]
"""The type of a config field `score`."""


class DotAttention(nn.Module):
    """score(q, k) = q · k: 002's. Queries and what was read are W numbers wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def keys(self, values: Tensor) -> Tensor:
        """(B, S, W) what queries are held against, made once of what was read (B, S, W)."""
        return values

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T, S) scores of queries (B, T, W)."""
        return queries @ keys.transpose(1, 2)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, behind: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts (B, T, W) and their weights (B, T, S); none on places `behind` (B, S) a text."""
        scores = self.scores(queries, keys).masked_fill(behind[:, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return weights @ values, weights


class ScaledDotAttention(DotAttention):
    """score(q, k) = q · k / √W (Vaswani et al. 2017)."""

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().scores(queries, keys) / self.width**0.5


class BilinearAttention(DotAttention):
    """score(q, k) = q · A k (Luong et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.matrix = nn.Linear(width, width, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        turned: Tensor = self.matrix(values)
        return turned


class AdditiveAttention(DotAttention):
    """score(q, k) = a · tanh(Q q + K k + b) (Bahdanau et al. 2015); T · S · W numbers at once."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.from_query = nn.Linear(width, width, bias=False)
        self.from_key = nn.Linear(width, width)
        self.weigh = nn.Linear(width, 1, bias=False)

    def keys(self, values: Tensor) -> Tensor:
        turned: Tensor = self.from_key(values)
        return turned

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        together = self.from_query(queries)[:, :, None] + keys[:, None]
        found: Tensor = self.weigh(together.tanh()).squeeze(-1)
        return found


RNN_ATTENTIONS: dict[AttentionScoreName, type[DotAttention]] = {
    "dot": DotAttention,
    "scaled": ScaledDotAttention,
    "general": BilinearAttention,
    "additive": AdditiveAttention,
}
