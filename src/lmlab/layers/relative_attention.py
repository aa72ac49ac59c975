"""Relative positions inside attention, as Transformer-XL and XLNet have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.layers.attention_positions import AttentionPositions
from lmlab.layers.positions import SinusoidalPositions
from lmlab.layers.scope import Scope

SPREAD = 0.02
"""Standard deviation of the first biases and segment vectors, as the published code draws them."""


class RelativePositions(AttentionPositions):
    """Scores by content, by distance and by segment (Dai et al. 2019; Yang et al. 2019).

        score_ij = (q_i + u) · k_j + (q_i + v) · R_{i-j} + (q_i + w) · s_ij
        R_d = W [sin(d ω), cos(d ω)],  s_ij = s₊ where i and j are of one segment, s₋ where not

    u, v, w (H, D), s (2, H, D) and W are learned. The last term is there where `segments` is true
    and the pass tells segments. Beyond `furthest` (0: never) distances count as that. Distances
    have a sign, so that it serves both ways. Queries (B, H, Tq, D), scores (B, H, Tq, Tk); cost
    O(Tq (Tq + Tk) D) a head.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        segments: bool = False,
        furthest: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.head_width, self.furthest = heads, head_width, furthest
        self.sinusoids = SinusoidalPositions(width)
        self.project = nn.Linear(width, heads * head_width, bias=False)
        self.content_bias = _small(heads, head_width)
        self.position_bias = _small(heads, head_width)
        self.segment_bias = _small(heads, head_width) if segments else None
        self.segments = _small(2, heads, head_width) if segments else None

    def turn_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        """q + u: what meets the keys."""
        return queries + self.content_bias[:, None]

    def bias(self, queries: Tensor, scope: Scope) -> Tensor:
        found = self._by_position(queries, scope)
        if self.segments is None or scope.query_segments is None:
            return found
        return found + self._by_segment(queries, scope)

    def _by_position(self, queries: Tensor, scope: Scope) -> Tensor:
        """(B, H, Tq, Tk) (q_i + v) · R_{i-j}."""
        distance = scope.query_positions[:, :, None] - scope.key_positions[:, None, :]
        if self.furthest:
            distance = distance.clamp(-self.furthest, self.furthest)
        # A product with every distance that occurs, then the right one for each pair.
        lowest, highest = (int(end) for end in torch.aminmax(distance))
        each = torch.arange(lowest, highest + 1, device=queries.device)
        vectors = self.project(self.sinusoids.waves(each).to(queries.dtype))
        vectors = vectors.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        by_distance = (queries + self.position_bias[:, None]) @ vectors
        row = (distance - lowest)[:, None].expand(*queries.shape[:3], -1)
        return by_distance.gather(-1, row)

    def _by_segment(self, queries: Tensor, scope: Scope) -> Tensor:
        """(B, H, Tq, Tk) (q_i + w) · s_ij."""
        assert self.segments is not None and self.segment_bias is not None
        assert scope.query_segments is not None and scope.key_segments is not None
        terms = (queries + self.segment_bias[:, None]) @ self.segments.permute(1, 2, 0)
        same = scope.query_segments[:, None, :, None] == scope.key_segments[:, None, None, :]
        return torch.where(same, terms[..., :1], terms[..., 1:])


def _small(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * SPREAD)
