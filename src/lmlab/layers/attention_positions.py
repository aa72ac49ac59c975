"""Positions inside attention: what depends on where a place is and where it looks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lmlab.layers.scope import Scope


class AttentionPositions(nn.Module):
    """What one attention layer makes of positions; by itself nothing."""

    has_values = False
    """Whether what is read depends on positions too, and not only the weights."""

    def turn_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        """Queries (B, H, T, D) before products are taken."""
        return queries

    def turn_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Keys (B, H, T, D) before they are kept or products are taken."""
        return keys

    def bias(self, queries: Tensor, scope: Scope) -> Tensor | None:
        """(B or 1, H, Tq, Tk) products with what stands for positions, before they are scaled."""
        return None

    def read(self, weights: Tensor, scope: Scope) -> Tensor:
        """(B, H, Tq, D) what is read of positions under these weights (B, H, Tq, Tk)."""
        raise TypeError(f"{type(self).__name__} has no values")


class Rotary(AttentionPositions):
    """Queries and keys turned by an angle that grows with their position (Su et al. 2021).

    Pairs (x_i, x_{i + D/2}) turn by position · base^(-2i/D), so that a product depends on the
    distance alone.
    """

    frequencies: Tensor

    def __init__(self, head_width: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        assert head_width % 2 == 0, head_width
        powers = torch.arange(0, head_width, 2).float() / head_width
        self.register_buffer("frequencies", base**-powers, persistent=False)

    def turn_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        return self._turned(queries, positions)

    def turn_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        return self._turned(keys, positions)

    def _turned(self, vectors: Tensor, positions: Tensor) -> Tensor:
        angles = (positions[..., None] * self.frequencies)[:, None]
        cosine, sine = angles.cos(), angles.sin()
        first, second = vectors.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class ShawPositions(AttentionPositions):
    """Vectors for the clipped distance, added to keys and to values (Shaw et al. 2018).

        score_ij = q_i · (k_j + a^K_c),  read_i = Σ_j w_ij (v_j + a^V_c),  c = clip(j - i, ±reach)

    One table for all heads. Cost O(T² D), and T² · reach without the trick below.
    """

    has_values = True

    def __init__(self, head_width: int, *, reach: int = 8) -> None:
        super().__init__()
        self.reach = reach
        self.keys = nn.Parameter(torch.randn(2 * reach + 1, head_width) * head_width**-0.5)
        self.values = nn.Parameter(torch.randn(2 * reach + 1, head_width) * head_width**-0.5)

    def bias(self, queries: Tensor, scope: Scope) -> Tensor:
        # A product with each of the few clipped distances, then the right one for each pair.
        by_distance = queries @ self.keys.t()
        clipped = self._clipped(scope)[:, None].expand(*by_distance.shape[:3], -1)
        return by_distance.gather(-1, clipped)

    def read(self, weights: Tensor, scope: Scope) -> Tensor:
        clipped = self._clipped(scope)[:, None].expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.reach + 1)
        return by_distance.scatter_add(-1, clipped, weights) @ self.values

    def _clipped(self, scope: Scope) -> Tensor:
        """(B or 1, Tq, Tk) row of the tables for each pair of places."""
        distance = scope.key_positions[:, None, :] - scope.query_positions[:, :, None]
        return distance.clamp(-self.reach, self.reach) + self.reach


class ScoreBias(nn.Module):
    """A number for each head and pair of positions, the same in all layers."""

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """(B or 1, H, Tq, Tk) added to the scaled scores."""
        raise TypeError(f"{type(self).__name__} does not define forward")


class Alibi(ScoreBias):
    """-slope_h · distance, with slopes 2^(-8h/H): the further, the less (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        steps = torch.arange(1, heads + 1).float() / heads
        self.register_buffer("slopes", 2.0 ** (-8 * steps), persistent=False)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()
        return -self.slopes[:, None, None] * distance[:, None]


class RelativeBuckets(ScoreBias):
    """A learned number for each head and bucket of distances (Raffel et al. 2020, T5).

    Half of the buckets hold one distance each, the other half grow in size up to `furthest`, which
    must exceed the first half's (`exact_buckets`). `both_ways` has buckets for
    places ahead as well, as an encoder needs.
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, furthest: int = 128, both_ways: bool = True
    ) -> None:
        super().__init__()
        assert furthest > exact_buckets(buckets, both_ways=both_ways), (buckets, furthest)
        self.buckets, self.furthest, self.both_ways = buckets, furthest, both_ways
        self.table = nn.Embedding(buckets, heads)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        ahead = key_positions[:, None, :] - query_positions[:, :, None]
        found: Tensor = self.table(self.bucket(ahead))
        return found.permute(0, 3, 1, 2)

    def bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of each distance; `ahead` is how far the key stands behind the query's end."""
        count = self.buckets // 2 if self.both_ways else self.buckets
        first = torch.where(ahead > 0, count, 0) if self.both_ways else torch.zeros_like(ahead)
        distance = ahead.abs() if self.both_ways else (-ahead).clamp(min=0)
        exact = exact_buckets(self.buckets, both_ways=self.both_ways)
        scaled = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.furthest / exact)
        far = (exact + (scaled * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)


def exact_buckets(buckets: int, *, both_ways: bool) -> int:
    """How many distances of one direction have a bucket each: half of that direction's buckets."""
    return (buckets // 2 if both_ways else buckets) // 2
