"""What the energy of a place is, given its hidden state and the token that was fed there (000)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.emissions.emission_interfaces import EnergyEmission


class InnerProductEnergy(EnergyEmission):
    """e(h, x) = -f(h) · e_x, with the input embedding of the token that was fed (000).

    BERT's own way to score a token, but that the token has been seen: so 000 calls it near to a
    Markov random field. f is a linear map, where `width` and the embedding's differ, else nothing.
    Hidden (…, W), tokens (…), energies (…).
    """

    def __init__(self, width: int, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight  # the backbone's own, shared
        size = embedding.embedding_dim
        self.dense = nn.Identity() if size == width else nn.Linear(width, size)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return -(self.dense(hidden) * self.weight[tokens]).sum(-1)


class LinearEnergy(EnergyEmission):
    """e(h, x) = -w · h / √W: a token speaks only through what was fed (Deng et al. 2020; 000).

    w is zero at first, so that all texts are alike, and a residual model is its base. The root
    keeps the sum over places from leaping at each step of an optimiser that moves every weight
    alike.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return -self.score(hidden).squeeze(-1) / hidden.shape[-1] ** 0.5


class SquaredEnergy(EnergyEmission):
    """e(h, x) = ‖A h + b‖² / W: how far from the origin, 0 where no constraint is broken (000).

    A machine that finds faults: each unit of A h + b may stand for a constraint. The map is needed,
    since a norm at the end of the layers gives every h the same length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.square(self.dense(hidden)).mean(-1)
