"""Marginalisation over retrieved documents: RAG-Sequence and RAG-Token.

Lewis et al. 2020, Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class DocumentMarginal(Protocol):
    """How the K documents retrieved for a question are marginalised in the generated text."""

    decoding_methods: ClassVar[tuple[str, ...]]
    """Decoding methods that the marginal supports, the paper's own first."""

    def log_probs(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """(B, T) log p(y_t | x, y_<t), marginalised over documents.

        `log_weights` (B, K) is log p(z | x), the others (B, K, T) are log p(y_t | x, z, y_<t).
        """
        ...

    def posteriors(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """(B, K, T) document posterior log p(z | x, y_≤t) at each token."""
        ...

    def update_weights(self, log_weights: Tensor, last_log_probs: Callable[[], Tensor]) -> Tensor:
        """(B, K) document weights after a token was generated.

        `last_log_probs` returns its (B, K) log p(y_t | x, z, y_<t); called only where needed.
        """
        ...


class RAGTokenMarginal:
    """RAG-Token: Π_t Σ_z p(z | x) p(y_t | x, z, y_<t); each token may use another document."""

    decoding_methods: ClassVar[tuple[str, ...]] = ("beam", "greedy", "sample")

    def log_probs(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        return torch.logsumexp(log_weights[..., None] + token_log_probs, dim=1)

    def posteriors(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        return F.log_softmax(log_weights[..., None] + token_log_probs, dim=1)

    def update_weights(self, log_weights: Tensor, last_log_probs: Callable[[], Tensor]) -> Tensor:
        return log_weights


class RAGSequenceMarginal:
    """RAG-Sequence: Σ_z p(z | x) Π_t p(y_t | x, z, y_<t); one document for the whole text.

    The sum factorises over tokens if the weights are updated by Bayes' rule:

        p(y_t | x, y_<t) = Σ_z p(z | x, y_<t) p(y_t | x, z, y_<t)
        p(z | x, y_≤t) ∝ p(z | x, y_<t) p(y_t | x, z, y_<t)

    so it can be stepped, sampled and searched exactly, which the paper does not do; the paper's own
    are the `thorough` and the `fast` decoding.
    """

    decoding_methods: ClassVar[tuple[str, ...]] = ("thorough", "fast", "beam", "greedy", "sample")

    def log_probs(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        # The posterior in double precision, as it sums over the whole text.
        joint = log_weights.double()[..., None] + token_log_probs.double().cumsum(2)
        prior = torch.cat([log_weights.double()[..., None], joint[..., :-1]], 2)
        weights = normalise_log_weights(prior[..., : token_log_probs.shape[2]])
        return torch.logsumexp(weights + token_log_probs, dim=1).to(token_log_probs.dtype)

    def posteriors(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        return normalise_log_weights(log_weights[..., None] + token_log_probs.cumsum(2))

    def update_weights(self, log_weights: Tensor, last_log_probs: Callable[[], Tensor]) -> Tensor:
        return normalise_log_weights(log_weights + last_log_probs())


def normalise_log_weights(log_weights: Tensor) -> Tensor:
    """Normalise the weights (B, K, …); uniform where the text has probability zero."""
    total = torch.logsumexp(log_weights, dim=1, keepdim=True)
    possible = total > -torch.inf
    uniform = log_weights.new_tensor(1 / log_weights.shape[1]).log()
    return torch.where(possible, log_weights - total.where(possible, 0), uniform)
