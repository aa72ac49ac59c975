"""What features are made of a stack's layers: a learned mix of all, or the last alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """γ Σ_j softmax(w)_j h_j over the layers j = 0 … L (Peters et al. 2018, equation 1).

    Layers (…, W) each, the mix (…, W). At the start all layers weigh the same and γ is one.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        shares = torch.softmax(self.weights, 0)
        return self.scale * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class LastLayer(nn.Module):
    """The last layer as it is (002 §3.4.3.3); nothing to learn."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[-1]
