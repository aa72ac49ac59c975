"""Cosine softmax emission: logits are scaled cosines of hidden state and token vector."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask, output_embedding
from lmlab.layers.input_embedding import scale_to_radius
from lmlab.layers.softmax_log_prob import linear_log_prob


class CosineSoftmax(Emission):
    """Cosine softmax: p(k | h) = softmax_k(β cos(e_k, h)), with one learned scale β > 0.

    Both vectors are normalised, so that no token wins by its norm, and there is no bias. Hidden (…,
    W), log-probabilities (…, V).

    `dropout` is applied after normalisation: before it, normalising would undo dropout's rescaling,
    cosines would be smaller in training than in evaluation by √(1 - dropout), and the model would
    be overconfident.
    """

    never_predicted: Tensor
    weight: Tensor

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = output_embedding(width, vocabulary, tied)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale or width**0.5)))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def _directions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(scale_to_radius(hidden)) * self.log_scale.exp(), scale_to_radius(
            self.weight
        )

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        scaled, outputs = self._directions(hidden)
        return linear_log_prob(scaled, outputs, self.never_predicted, targets)

    def log_probs(self, hidden: Tensor) -> Tensor:
        scaled, outputs = self._directions(hidden)
        return F.log_softmax(F.linear(scaled, outputs, self.never_predicted), dim=-1)
