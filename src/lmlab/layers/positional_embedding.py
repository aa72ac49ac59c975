"""Positions told to a Transformer by its input vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lmlab.core.errors import UserError


class PositionalEmbedding(nn.Module):
    """Input vectors (B, T, E) with their positions (B or 1, T) told to them."""

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")


class LearnedPositionalEmbedding(PositionalEmbedding):
    """e(s_t) + p_t with a learned vector for each of `length` positions (Devlin et al. 2019)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        if positions.numel() and int(positions.max()) >= self.table.num_embeddings:
            raise UserError(
                f"this system knows {self.table.num_embeddings} positions, and more came; give "
                "shorter texts, or build it with a larger length."
            )
        return vectors + self.table(positions)


class PairPositionalEmbedding(PositionalEmbedding):
    """e(s_t) + p_i + r_j for positions that are pairs (i, j), (B, T, 2) (Du et al. 2022, GLM)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.first = LearnedPositionalEmbedding(length, width)
        self.second = LearnedPositionalEmbedding(length, width)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return self.second(self.first(vectors, positions[..., 0]), positions[..., 1])


class SinusoidalPositionalEmbedding(PositionalEmbedding):
    """e(s_t) + [sin(t ω), cos(t ω)], ω_i = 10000^(-2i/E) (Vaswani et al. 2017); any length.

    All sines stand before all cosines; the paper's own order, alternating, is the same up to a
    permutation of the units, which the first matrix can learn.
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
        # Where E is odd there is one sine more than there are cosines.
        return torch.cat([angles.sin(), angles[..., : self.width // 2].cos()], dim=-1)


class ConcatenatedPositionalEmbedding(PositionalEmbedding):
    """[e(s_t); sin(t ω), cos(t ω)] beside each other, as 002 tells it: (B, T, E + P)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sinusoidal = SinusoidalPositionalEmbedding(width)

    def forward(self, vectors: Tensor, positions: Tensor) -> Tensor:
        sinusoid_table = self.sinusoidal.sinusoid_table(positions)
        return torch.cat([vectors, sinusoid_table.expand(len(vectors), -1, -1)], dim=-1)
