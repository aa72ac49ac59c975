"""Embeddings on a sphere: fixed norm, so that only the direction carries information."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
