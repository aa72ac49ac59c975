"""Replaced-token discriminator (ELECTRA): the probability that a token was replaced."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.layers.feed_forward import ACTIVATIONS, ActivationName


class Discriminator(Emission):
    """ELECTRA's discriminator: p(replaced | h) = σ(w · f(W h + b) + c) (Clark et al. 2020).

    A distribution over two outcomes, 0 original and 1 replaced, not over the vocabulary. Hidden (…,
    W), log-probabilities (…, 2).
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})
    outcomes: ClassVar[tuple[str, ...]] = ("written", "replaced")
    """The two classes of a token."""

    def __init__(self, width: int, *, activation: ActivationName = "gelu") -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[activation]
        self.score = nn.Linear(width, 1)

    def log_odds(self, hidden: Tensor) -> Tensor:
        """(…) positive where the token is more probably replaced."""
        return self.score(self.activation(self.dense(hidden))).squeeze(-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        odds = self.log_odds(hidden)
        return torch.stack([F.logsigmoid(-odds), F.logsigmoid(odds)], dim=-1)
