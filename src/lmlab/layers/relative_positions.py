"""Relative position encodings: rotary, Shaw, ALiBi, T5 buckets, Transformer-XL, NEZHA."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from lmlab.layers.input_embedding import SinusoidalPositionalEmbedding
from lmlab.layers.rotary_scaling import RotaryScaling
from lmlab.layers.sequence_mixer import LayerContext


class RelativePositionEncoding(nn.Module):
    """Base class of position encodings inside an attention layer; does nothing by itself."""

    def transform_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        """Queries (B, H, T, D) before products are taken."""
        return queries

    def transform_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Keys (B, H, T, D) before they are cached or products are taken."""
        return keys

    def bias(self, queries: Tensor, context: LayerContext) -> Tensor | None:
        """(B or 1, H, Tq, Tk) products with position vectors, before scaling."""
        return None


class RelativeValueEncoding(RelativePositionEncoding, ABC):
    """Base class of encodings in which positions also affect the values."""

    @abstractmethod
    def read(self, weights: Tensor, context: LayerContext) -> Tensor:
        """(B, H, Tq, D) position values under these attention weights (B, H, Tq, Tk)."""


class RotaryEmbedding(RelativePositionEncoding):
    """Rotary position embedding (RoPE, Su et al. 2021).

    Pairs (x_i, x_{i + D/2}) are rotated by position · base^(-2i/D), so that a product depends on
    the relative distance alone. `scaling` changes the frequencies.
    """

    frequencies: Tensor

    def __init__(
        self, head_width: int, *, base: float = 10_000.0, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        assert head_width % 2 == 0, head_width
        powers = torch.arange(0, head_width, 2).float() / head_width
        frequencies = base**-powers
        if scaling is not None:
            frequencies = scaling.scale(frequencies)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def transform_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        return self.transform_queries(keys, positions)

    def transform_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        angles = (positions[..., None] * self.frequencies)[:, None]
        cosine, sine = angles.cos(), angles.sin()
        first, second = queries.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class ShawPositions(RelativeValueEncoding):
    """Relative position embeddings of clipped distances for keys and values (Shaw et al. 2018).

        score_ij = q_i · (k_j + a^K_c),  read_i = Σ_j w_ij (v_j + a^V_c),  c = clip(j - i, ±K)

    K is `clip_distance`. One table for all heads. Cost O(T² D), and T² · K without the trick below.
    """

    def __init__(self, head_width: int, *, clip_distance: int = 8) -> None:
        super().__init__()
        self.clip_distance = clip_distance
        self.keys = nn.Parameter(torch.randn(2 * clip_distance + 1, head_width) * head_width**-0.5)
        self.values = nn.Parameter(
            torch.randn(2 * clip_distance + 1, head_width) * head_width**-0.5
        )

    def bias(self, queries: Tensor, context: LayerContext) -> Tensor:
        # A product with each of the few clipped distances, then a gather for each pair.
        by_distance = queries @ self.keys.t()
        clipped = self._clipped(context)[:, None].expand(*by_distance.shape[:3], -1)
        return by_distance.gather(-1, clipped)

    def read(self, weights: Tensor, context: LayerContext) -> Tensor:
        clipped = self._clipped(context)[:, None].expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.clip_distance + 1)
        return by_distance.scatter_add(-1, clipped, weights) @ self.values

    def _clipped(self, context: LayerContext) -> Tensor:
        """(B or 1, Tq, Tk) table row for each pair of positions."""
        distance = context.key_positions[:, None, :] - context.query_positions[:, :, None]
        return distance.clamp(-self.clip_distance, self.clip_distance) + self.clip_distance


class PositionBias(nn.Module, ABC):
    """Attention bias for each head and pair of positions, shared by all layers."""

    @abstractmethod
    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """(B or 1, H, Tq, Tk) added to the scaled scores."""


class AlibiBias(PositionBias):
    """ALiBi: bias -slope_h · distance, with slopes 2^(-8h/H) (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        steps = torch.arange(1, heads + 1).float() / heads
        self.register_buffer("slopes", 2.0 ** (-8 * steps), persistent=False)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distance = (query_positions[:, :, None] - key_positions[:, None, :]).abs()
        return -self.slopes[:, None, None] * distance[:, None]


class T5RelativeBias(PositionBias):
    """T5 relative position bias: learned for each head and distance bucket (Raffel et al. 2020).

    Half of the buckets hold one distance each, the other half grow in size up to `max_distance`,
    which must exceed the first half's (`exact_bucket_count`). `bidirectional` adds buckets
    for later positions, as an encoder needs.
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        assert max_distance > exact_bucket_count(buckets, bidirectional=bidirectional), (
            buckets,
            max_distance,
        )
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.table = nn.Embedding(buckets, heads)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        ahead = key_positions[:, None, :] - query_positions[:, :, None]
        biases: Tensor = self.table(self.bucket(ahead))
        return biases.permute(0, 3, 1, 2)

    def bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of each distance; `ahead` is the key position minus the query position."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        first = torch.where(ahead > 0, count, 0) if self.bidirectional else torch.zeros_like(ahead)
        distance = ahead.abs() if self.bidirectional else (-ahead).clamp(min=0)
        exact = exact_bucket_count(self.buckets, bidirectional=self.bidirectional)
        scaled = torch.log(distance.clamp(min=1).float() / exact) / math.log(
            self.max_distance / exact
        )
        far = (exact + (scaled * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)


def exact_bucket_count(buckets: int, *, bidirectional: bool) -> int:
    """Number of distances in one direction with their own bucket: half of its buckets."""
    return (buckets // 2 if bidirectional else buckets) // 2


XL_INITIAL_STD = 0.02
"""Standard deviation of the initial biases and segment vectors, as in the published code."""


class TransformerXLPositions(RelativePositionEncoding):
    """Transformer-XL relative positions, XLNet segments (Dai et al. 2019; Yang et al. 2019).

        score_ij = (q_i + u) · k_j + (q_i + v) · R_{i-j} + (q_i + w) · s_ij
        R_d = W [sin(d ω), cos(d ω)],  s_ij = s₊ where i and j are of one segment, s₋ where not

    u, v, w (H, D), s (2, H, D) and W are learned. The last term needs `segments` and segment ids in
    the context. Distances are signed, for bidirectional use, and clipped at `max_distance` (0: no
    limit). Queries (B, H, Tq, D), scores (B, H, Tq, Tk); cost O(Tq (Tq + Tk) D) per head.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        segments: bool = False,
        max_distance: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.head_width, self.max_distance = heads, head_width, max_distance
        self.sinusoids = SinusoidalPositionalEmbedding(width)
        self.project = nn.Linear(width, heads * head_width, bias=False)
        self.content_bias = _small_parameter(heads, head_width)
        self.position_bias = _small_parameter(heads, head_width)
        self.segment_bias = _small_parameter(heads, head_width) if segments else None
        self.segments = _small_parameter(2, heads, head_width) if segments else None

    def share_biases(self, other: TransformerXLPositions) -> None:
        """Use the biases u and v of another layer, as in the authors' code."""
        self.content_bias, self.position_bias = other.content_bias, other.position_bias

    def transform_queries(self, queries: Tensor, positions: Tensor) -> Tensor:
        """q + u, for the products with keys."""
        return queries + self.content_bias[:, None]

    def bias(self, queries: Tensor, context: LayerContext) -> Tensor:
        bias = self._by_position(queries, context)
        if self.segments is None or context.query_segments is None:
            return bias
        return bias + self._by_segment(queries, context)

    def _by_position(self, queries: Tensor, context: LayerContext) -> Tensor:
        """(B, H, Tq, Tk) (q_i + v) · R_{i-j}."""
        distance = context.query_positions[:, :, None] - context.key_positions[:, None, :]
        if self.max_distance:
            distance = distance.clamp(-self.max_distance, self.max_distance)
        # A product with every distance that occurs, then a gather for each pair.
        lowest, highest = (int(end) for end in torch.aminmax(distance))
        distances = torch.arange(lowest, highest + 1, device=queries.device)
        vectors = self.project(self.sinusoids.sinusoid_table(distances).to(queries.dtype))
        vectors = vectors.view(-1, self.heads, self.head_width).permute(1, 2, 0)
        by_distance = (queries + self.position_bias[:, None]) @ vectors
        row = (distance - lowest)[:, None].expand(*queries.shape[:3], -1)
        return by_distance.gather(-1, row)

    def _by_segment(self, queries: Tensor, context: LayerContext) -> Tensor:
        """(B, H, Tq, Tk) (q_i + w) · s_ij."""
        assert self.segments is not None and self.segment_bias is not None
        assert context.query_segments is not None and context.key_segments is not None
        terms = (queries + self.segment_bias[:, None]) @ self.segments.permute(1, 2, 0)
        same = context.query_segments[:, None, :, None] == context.key_segments[:, None, None, :]
        return torch.where(same, terms[..., :1], terms[..., 1:])


def _small_parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * XL_INITIAL_STD)


class NezhaPositions(ShawPositions):
    """NEZHA's relative positions: Shaw's with fixed sinusoids, the same for keys and values.

        a_c = [sin(c ω), cos(c ω)],  ω_i = 10000^(-2i/D),  c = clip(j - i, ±K).

    No parameters; near distances have similar vectors. NEZHA's clip distance K is 64.
    """

    def __init__(self, head_width: int, *, clip_distance: int = 64) -> None:
        RelativePositionEncoding.__init__(self)
        self.clip_distance = clip_distance
        distances = torch.arange(-clip_distance, clip_distance + 1)[None]
        sinusoid_table: Tensor = SinusoidalPositionalEmbedding(head_width).sinusoid_table(
            distances
        )[0]
        self.register_buffer("keys", sinusoid_table, persistent=False)
        self.register_buffer("values", sinusoid_table, persistent=False)
