"""Input embeddings: tokens, absolute positions (learned, 2D, sinusoidal), segments, norm."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lmlab.core.errors import UserError


class PositionalEmbedding(nn.Module, ABC):
    """Input embeddings (B, T, E) combined with their positions (B or 1, T)."""

    @abstractmethod
    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """(B, T, W), which may be wider than E."""


class LearnedPositionalEmbedding(PositionalEmbedding):
    """Learned positional embedding e(s_t) + p_t for `length` positions (Devlin et al. 2019)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        if positions.numel() and int(positions.max()) >= self.table.num_embeddings:
            raise UserError(
                f"a text must have at most {self.table.num_embeddings} positions; give shorter "
                "texts, or build the system with a larger length."
            )
        return vectors + self.table(positions)


class PairPositionalEmbedding(PositionalEmbedding):
    """Pair positions e(s_t) + p_i + r_j for pairs (i, j), (B, T, 2) (GLM, Du et al. 2022)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.first = LearnedPositionalEmbedding(length, width)
        self.second = LearnedPositionalEmbedding(length, width)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return self.second(self.first(vectors, positions[..., 0]), positions[..., 1])


class SinusoidalPositionalEmbedding(PositionalEmbedding):
    """Sinusoidal e(s_t) + [sin(t ω), cos(t ω)], ω_i = 10000^(-2i/E) (Vaswani et al. 2017).

    For any length. All sines come before all cosines; the paper's alternating order is the same up
    to a permutation of the units, which the first matrix can learn.
    """

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        powers = torch.arange(0, width, 2).float() / width
        frequencies = torch.exp(-math.log(10_000.0) * powers)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.width = width

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return vectors + self.sinusoid_table(positions)

    def sinusoid_table(self, positions: Tensor) -> Tensor:
        """(B or 1, T, E) the sines and cosines of each position."""
        angles = positions[..., None] * self.frequencies
        # If E is odd there is one sine more than cosines.
        return torch.cat([angles.sin(), angles[..., : self.width // 2].cos()], dim=-1)


class ConcatenatedPositionalEmbedding(PositionalEmbedding):
    """Concatenated sinusoidal positions [e(s_t); sin(t ω), cos(t ω)]: (B, T, E + P)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sinusoidal = SinusoidalPositionalEmbedding(width)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        sinusoid_table = self.sinusoidal.sinusoid_table(positions)
        return torch.cat([vectors, sinusoid_table.expand(len(vectors), -1, -1)], dim=-1)


def scale_to_radius(vectors: Tensor, radius: float = 1.0) -> Tensor:
    """The vectors (…, W) scaled to the given norm; a zero vector stays zero."""
    return F.normalize(vectors, dim=-1) * radius


class _UnitVectors(torch.autograd.Function):
    """x / |x| with gradient (g - y (y · g)) / |x|: a third of the passes over memory."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_(min=1e-12)
        units = vectors / lengths
        ctx.save_for_backward(units, lengths)
        return units

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        units, lengths = ctx.saved_tensors
        along = torch.linalg.vecdot(units, gradient)[..., None]
        return torch.addcmul(gradient, units, along, value=-1).div_(lengths)


def unit_vectors(vectors: Tensor) -> Tensor:
    """`scale_to_radius` to norm 1 for a whole vocabulary (V, W), differentiable once."""
    return _UnitVectors.apply(vectors)


class SphereEmbedding(nn.Embedding):
    """Token embeddings of norm √W, whatever their raw norm: entries of unit RMS."""

    def reset_parameters(self) -> None:
        # Short vectors: their norm has no effect, but the shorter they are the faster they rotate.
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        radius = float(self.embedding_dim) ** 0.5
        return scale_to_radius(super().forward(tokens), radius)


class InputEmbedding(nn.Module):
    """Tokens to vectors: embedding, times `scale`, segments, positions, norm, dropout, projection.

    Segments come before positions, which may widen the vectors (`ConcatenatedPositionalEmbedding`).
    Inputs (B, T) ids, or (B, T, D) vectors if `tokens` is a linear map of them (image patches).
    `projection` widens embeddings narrower than the layers (ALBERT's factorised embedding).
    """

    def __init__(
        self,
        tokens: nn.Module,
        *,
        positions: PositionalEmbedding | None = None,
        segments: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        projection: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float = 1.0,
        max_positions: int | None = None,
    ) -> None:
        """`max_positions`: the most that a text may have, whatever the kind of positions."""
        super().__init__()
        self.tokens = tokens
        self.max_positions = max_positions
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.projection = projection
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

    def share(self, other: InputEmbedding) -> None:
        """Use the positions, segments and norm of another embedding."""
        self.positions, self.segments, self.norm = other.positions, other.segments, other.norm

    def forward(self, inputs: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T, W), given positions (B or 1, T) and segment ids (B, T), 0 if None."""
        vectors: Tensor = self.tokens(inputs)
        if self.scale != 1.0:
            vectors = vectors * self.scale
        if self.segments is not None:
            # Segment 0 by default, as in all published code; ids beyond the table are clipped to
            # its last (RoBERTa has one).
            if segments is None:
                vectors = vectors + self.segments.weight[0]
            else:
                last = self.segments.num_embeddings - 1
                vectors = vectors + self.segments(segments.clamp(max=last))
        if self.positions is not None:
            vectors = self.positions(vectors, positions)
        if self.norm is not None:
            vectors = self.norm(vectors)
        vectors = self.dropout(vectors)
        return vectors if self.projection is None else self.projection(vectors)
