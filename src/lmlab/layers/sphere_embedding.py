"""Vectors on a sphere: only their direction can say anything."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def scale_to_radius(vectors: Tensor, radius: float = 1.0) -> Tensor:
    """The vectors (…, W) scaled to the given length; a zero vector stays zero."""
    return F.normalize(vectors, dim=-1) * radius


class SphereEmbedding(nn.Embedding):
    """Token embeddings of length √W, whatever their raw length: entries of unit size on average.

    003 divides a vector by the standard deviation of its entries; length √W is its clean form.
    """

    def reset_parameters(self) -> None:
        # Short vectors: their length says nothing, but the shorter they are the faster they turn.
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        radius = float(self.embedding_dim) ** 0.5
        return scale_to_radius(super().forward(tokens), radius)
