"""Residual MLP with one hidden layer, for embeddings that parameterise tables."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualMLP(nn.Module):
    """x + W₂ relu(W₁ norm(x)), (…, W) to (…, W)."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        inner = F.relu(self.inner(self.norm(values)))
        added: Tensor = values + self.outer(self.dropout(inner))
        return added
