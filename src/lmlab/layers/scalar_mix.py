"""Scalar mix of layers (ELMo): features as a learned mix of all layers, or the last alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """ELMo's γ Σ_j softmax(w)_j h_j over the layers j = 0 … L (Peters et al. 2018, equation 1).

    Layers (…, W) each, the mix (…, W). Initialised to equal weights and γ = 1.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        shares = torch.softmax(self.weights, 0)
        return self.scale * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class LastLayer(nn.Module):
    """The last layer unchanged; no parameters."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[-1]
