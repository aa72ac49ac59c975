"""Radial basis function (RBF) emission: logits are negative squared distances to token vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask, output_embedding
from lmlab.layers.softmax_log_prob import linear_log_prob


class RadialBasis(Emission):
    """RBF softmax: p(k | h) = softmax_k(-β |h - e_k

        ²), β > 0 learned and initially ½.

    |h|² is the same for every token, so the logits are 2β h · e_k - β |e_k|²: a softmax whose bias
    is determined by the vector's norm, and so of the same rank. Hidden (…, W), log-probabilities
    (…, V).
    """

    never_predicted: Tensor
    weight: Tensor

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = output_embedding(width, vocabulary, tied)
        self.log_scale = nn.Parameter(torch.tensor(math.log(0.5)))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def _linear(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """2β h and the bias -β |e_k|², with which a softmax over e gives the distribution."""
        scale = self.log_scale.exp()
        bias = self.never_predicted - scale * self.weight.square().sum(-1)
        return 2 * scale * self.dropout(hidden), bias

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        scaled, bias = self._linear(hidden)
        return linear_log_prob(scaled, self.weight, bias, targets)

    def log_probs(self, hidden: Tensor) -> Tensor:
        scaled, bias = self._linear(hidden)
        return F.log_softmax(F.linear(scaled, self.weight, bias), dim=-1)
