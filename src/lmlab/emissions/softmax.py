"""Softmax emissions: inner products, cosines, or distances (RBF) to an output vector per token."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask, output_embedding
from lmlab.layers.input_embedding import scale_to_radius, unit_vectors
from lmlab.layers.softmax_log_prob import linear_log_prob, log_normaliser


class LinearSoftmax(Emission):
    """Base class: softmax of logits e · x + b, with x a function of the hidden state.

    Hidden (…, W), log-probabilities (…, V). `tied` shares the input embedding as output vectors
    (Press and Wolf 2017).
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
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    @abstractmethod
    def linear(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, W) x, (V, W) the output vectors e and (V,) the bias b."""

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return linear_log_prob(*self.linear(hidden), targets)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(F.linear(*self.linear(hidden)), dim=-1)


class Softmax(LinearSoftmax):
    """Softmax over token logits: p(k | h) = softmax_k(e_k · h + b_k).

    `tied` shares the input embedding as e (Press and Wolf 2017). Tokens that are never predicted
    get a bias of -inf. `dropout` is applied to the hidden state; use it if the backbone has none at
    its output. `transform` is applied to hidden states first (BERT's prediction head), only at
    targets; it may change the width, and `width` is the one after it. Hidden (…, W),
    log-probabilities (…, V).
    """

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        transform: nn.Module | None = None,
    ) -> None:
        super().__init__(width, vocabulary, tied=tied, dropout=dropout)
        self.bias = nn.Parameter(torch.zeros(vocabulary.size)) if bias else None
        self.transform = transform

    def linear(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._transformed(hidden), self.weight, self._biases()

    def log_prob_by_index(self, hidden: Tensor, index: Tensor, targets: Tensor) -> Tensor:
        """Inner products of targets with their hidden states, minus the log-normalisers."""
        transformed = self._transformed(hidden)
        outputs, offsets = F.embedding(targets, self.weight), self._biases()
        scores = (transformed[index] * outputs).sum(-1) + offsets[targets]
        return scores - self._log_normaliser(transformed)[index]

    def log_prob_and_mean(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of all logits is the logit of the mean vector, so it needs no second product."""
        transformed, offsets = self._transformed(hidden), self._biases()
        exact = linear_log_prob(transformed, self.weight, offsets, targets)
        score = (transformed * F.embedding(targets, self.weight)).sum(-1) + offsets[targets]
        possible = self.never_predicted == 0
        mean = transformed @ self.weight[possible].mean(0) + offsets[possible].mean()
        # The log-normaliser is the logit minus its log-probability.
        return exact, mean - (score - exact)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) e_k · h + b_k of all tokens, including those that are never predicted."""
        return F.linear(self._transformed(hidden), self.weight, self.bias)

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) e_k · h + b_k of one token k for each hidden state (N, W), without the others."""
        scores = (self._transformed(hidden) * self.weight[targets]).sum(-1)
        return scores if self.bias is None else scores + self.bias[targets]

    def scores(self, hidden: Tensor, candidates: Tensor, shared: Tensor | None = None) -> Tensor:
        """Inner products with the vectors of given tokens only: see `CandidateLogits.scores`."""
        transformed = self._transformed(hidden)
        own_scores = (F.embedding(candidates, self.weight) @ transformed[..., None]).squeeze(
            -1
        ) + self._bias_of(candidates)
        if shared is None:
            return own_scores
        shared_scores = transformed @ F.embedding(shared, self.weight).t() + self._bias_of(shared)
        return torch.cat([own_scores, shared_scores], 1)

    @torch.no_grad()
    def initialise_logits(self, log_probs: Tensor) -> None:
        if self.bias is not None:
            self.bias.copy_(torch.where(self.never_predicted == 0, log_probs, 0.0))

    def _bias_of(self, tokens: Tensor) -> Tensor | float:
        """b of each token; gathered as an embedding, whose gradient is cheaper."""
        return 0.0 if self.bias is None else F.embedding(tokens, self.bias[:, None]).squeeze(-1)

    def log_prob_by_source(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Inner products of targets with sources, minus each source's log-normaliser."""
        sources = self._transformed(sources)
        offsets = self._biases()
        # Gathered as embeddings, whose gradients are cheaper.
        outputs, biases = F.embedding(targets, self.weight), F.embedding(targets, offsets[:, None])
        scores = torch.baddbmm(biases, outputs, sources.transpose(1, 2))
        return scores - self._log_normaliser(sources.flatten(0, 1)).view(len(sources), 1, -1)

    def _transformed(self, hidden: Tensor) -> Tensor:
        """The hidden state after `transform` and dropout."""
        transformed = hidden if self.transform is None else self.transform(hidden)
        return self.dropout(transformed)

    def _biases(self) -> Tensor:
        """(V,) b_k, and -inf at tokens that are never predicted."""
        return self.never_predicted if self.bias is None else self.bias + self.never_predicted

    def _log_normaliser(self, hidden: Tensor) -> Tensor:
        """(N,) log Σ_k exp(e_k · h + b_k)."""
        return log_normaliser(hidden, self.weight, self._biases())


class CosineSoftmax(LinearSoftmax):
    """Cosine softmax: p(k | h) = softmax_k(β cos(e_k, h)), with one learned scale β > 0.

    Both vectors are normalised, so that no token wins by its norm, and there is no bias. `dropout`
    is applied after normalisation: before it, normalising would undo dropout's rescaling, cosines
    would be smaller in training than in evaluation by √(1 - dropout), and the model would be
    overconfident.
    """

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, vocabulary, tied=tied, dropout=dropout)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale or width**0.5)))

    def linear(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scaled = self.dropout(scale_to_radius(hidden)) * self.log_scale.exp()
        return scaled, unit_vectors(self.weight), self.never_predicted


class RadialBasis(LinearSoftmax):
    """RBF softmax: p(k | h) = softmax_k(-β |h - e_k|²), β > 0 learned and initially ½.

    |h|² is the same for every token, so the logits are 2β h · e_k - β |e_k|²: a softmax whose bias
    is determined by the vector's norm, and so of the same rank.
    """

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, vocabulary, tied=tied, dropout=dropout)
        self.log_scale = nn.Parameter(torch.tensor(math.log(0.5)))

    def linear(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = self.log_scale.exp()
        bias = self.never_predicted - scale * self.weight.square().sum(-1)
        return 2 * scale * self.dropout(hidden), self.weight, bias
