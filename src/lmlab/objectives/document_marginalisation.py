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

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        """(B, T) log p(y_t | x, y_<t), marginalised over documents.

        `log_weights` (B, K) is log p(z | x), `each` (B, K, T) is log p(y_t | x, z, y_<t).
        """
        ...

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        """(B, K, T) document posterior log p(z | x, y_≤t) at each token."""
        ...

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
        """(B, K) document weights after a token was generated.

        `written` returns its (B, K) log p(y_t | x, z, y_<t), and is called only where needed.
        """
        ...


class RAGTokenMarginal:
    """RAG-Token: Π_t Σ_z p(z | x) p(y_t | x, z, y_<t); each token may use another document."""

    decoding_methods: ClassVar[tuple[str, ...]] = ("beam", "greedy", "sample")

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return torch.logsumexp(log_weights[..., None] + each, dim=1)

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return F.log_softmax(log_weights[..., None] + each, dim=1)

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
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

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        # The posterior in double precision, as it sums over the whole text.
        joint = log_weights.double()[..., None] + each.double().cumsum(2)
        before = torch.cat([log_weights.double()[..., None], joint[..., :-1]], 2)
        weights = normalise_log_weights(before[..., : each.shape[2]])
        return torch.logsumexp(weights + each, dim=1).to(each.dtype)

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return normalise_log_weights(log_weights[..., None] + each.cumsum(2))

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
        return normalise_log_weights(log_weights + written())


def normalise_log_weights(log_weights: Tensor) -> Tensor:
    """Normalise the weights (B, K, …); uniform where the text has probability zero."""
    total = torch.logsumexp(log_weights, dim=1, keepdim=True)
    possible = total > -torch.inf
    alike = log_weights.new_tensor(1 / log_weights.shape[1]).log()
    return torch.where(possible, log_weights - total.where(possible, 0), alike)
