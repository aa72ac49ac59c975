"""Softmax emission: inner products with an output vector for each token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.outputs import never_predicted, output_vectors
from lmlab.layers.linear_log_prob import linear_log_prob


class Softmax(Emission):
    """p(k | h) = softmax_k(e_k · h + b_k).

    `tied` shares the input embedding as e (Press and Wolf 2017). Tokens that are never predicted
    get a bias of -inf, so that the rest sums to one. `dropout` falls on the hidden state; give it
    where the backbone drops nothing at its end. Hidden (…, W), log-probabilities (…, V).
    """

    never: Tensor
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
        self.weight = output_vectors(width, vocabulary, tied)
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("never", never_predicted(vocabulary), persistent=False)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        dropped = self.dropout(hidden)
        return linear_log_prob(dropped, self.weight, self.bias + self.never, targets)

    def log_probs(self, hidden: Tensor) -> Tensor:
        scores = F.linear(self.dropout(hidden), self.weight, self.bias + self.never)
        return F.log_softmax(scores, dim=-1)

    def pair_log_prob(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Inner products of targets with sources, less each source's own normaliser."""
        sources = self.dropout(sources)
        scores = self.weight[targets] @ sources.transpose(1, 2) + self.bias[targets][..., None]
        return scores - self._log_normaliser(sources.flatten(0, 1)).view(len(sources), 1, -1)

    def _log_normaliser(self, hidden: Tensor) -> Tensor:
        """(N,) log Σ_k exp(e_k · h + b_k): a score less its log-probability."""
        any_token = int((self.never == 0).nonzero()[0])
        targets = torch.full((len(hidden),), any_token, device=hidden.device)
        score = hidden @ self.weight[any_token] + self.bias[any_token]
        return score - linear_log_prob(hidden, self.weight, self.bias + self.never, targets)
