"""Input embeddings: Transformer's (tokens, segments, positions); token vectors of fixed norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.layers.positional_embedding import PositionalEmbedding


def scale_to_radius(vectors: Tensor, radius: float = 1.0) -> Tensor:
    """The vectors (…, W) scaled to the given norm; a zero vector stays zero."""
    return F.normalize(vectors, dim=-1) * radius


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
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.projection = projection
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

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
