"""Per-position energies e(h, x) of energy-based LMs: inner product, linear, squared norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.emissions.emission_interfaces import EnergyEmission


class InnerProductEnergy(EnergyEmission):
    """Inner-product energy: e(h, x) = -f(h) · e_x, with the input embedding of the token.

    BERT's score of a token, except that the token is visible to the network. f is a linear map if
    `width` differs from the embedding's, else the identity. Hidden (…, W), tokens (…), energies
    (…).
    """

    def __init__(self, width: int, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight  # the backbone's own, shared
        size = embedding.embedding_dim
        self.dense = nn.Identity() if size == width else nn.Linear(width, size)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return -(self.dense(hidden) * self.weight[tokens]).sum(-1)


class LinearEnergy(EnergyEmission):
    """Linear energy: e(h, x) = -w · h / √W; the token acts through h only (Deng et al. 2020).

    w is zero at initialisation, so that all texts have equal energy and a residual model equals its
    base. The root keeps the sum over positions from jumping at each step of an optimiser that moves
    all weights equally.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return -self.score(hidden).squeeze(-1) / hidden.shape[-1] ** 0.5


class SquaredEnergy(EnergyEmission):
    """Squared-norm energy: e(h, x) = ‖A h + b‖² / W, 0 where no constraint is violated.

    Each unit of A h + b may stand for a constraint. The map is needed, since a final layer norm
    gives every h the same length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.square(self.dense(hidden)).mean(-1)
