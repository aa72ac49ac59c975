"""Absolute positional embeddings: learned, 2D (GLM), sinusoidal, concatenated sinusoidal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lmlab.core.errors import UserError


class PositionalEmbedding(nn.Module):
    """Input embeddings (B, T, E) combined with their positions (B or 1, T)."""

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")


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
