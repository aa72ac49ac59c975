"""Sums over retrieved documents: one for a whole text, or one for each token of it (RAG).

Lewis et al. 2020, Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class DocumentMarginal(Protocol):
    """How the K documents of a question share in the text that is written for it."""

    decoding_methods: ClassVar[tuple[str, ...]]
    """Ways to find likely texts that its sum allows, the paper's own first."""

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        """(B, T) log p(y_t | x, y_<t), the documents summed out.

        `log_weights` (B, K) is log p(z | x), `each` (B, K, T) is log p(y_t | x, z, y_<t).
        """
        ...

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        """(B, K, T) log p(z | x, y_≤t): which document the token at each place was taken from."""
        ...

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
        """(B, K) the weights of the documents after a token was written.

        `written` gives (B, K) log p(y_t | x, z, y_<t) of it, and is called only where it matters.
        """
        ...


class RAGTokenMarginal:
    """RAG-Token: Π_t Σ_z p(z | x) p(y_t | x, z, y_<t); any token may rest on any document."""

    decoding_methods: ClassVar[tuple[str, ...]] = ("beam", "greedy", "sample")

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return torch.logsumexp(log_weights[..., None] + each, dim=1)

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return F.log_softmax(log_weights[..., None] + each, dim=1)

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
        return log_weights


class RAGSequenceMarginal:
    """RAG-Sequence: Σ_z p(z | x) Π_t p(y_t | x, z, y_<t); a text rests on one document.

    The sum does factorise over tokens, if the weights learn from what was written:

        p(y_t | x, y_<t) = Σ_z p(z | x, y_<t) p(y_t | x, z, y_<t)
        p(z | x, y_≤t) ∝ p(z | x, y_<t) p(y_t | x, z, y_<t)

    so that it can be stepped, drawn from and searched exactly, which the paper (and 004) leave
    out; theirs are the `thorough` and the `fast` decoding.
    """

    decoding_methods: ClassVar[tuple[str, ...]] = ("thorough", "fast", "beam", "greedy", "sample")

    def log_probs(self, log_weights: Tensor, each: Tensor) -> Tensor:
        # The posterior in double precision, since it is a sum over the whole text.
        joint = log_weights.double()[..., None] + each.double().cumsum(2)
        before = torch.cat([log_weights.double()[..., None], joint[..., :-1]], 2)
        weights = normalise_log_weights(before[..., : each.shape[2]])
        return torch.logsumexp(weights + each, dim=1).to(each.dtype)

    def posteriors(self, log_weights: Tensor, each: Tensor) -> Tensor:
        return normalise_log_weights(log_weights[..., None] + each.cumsum(2))

    def update_weights(self, log_weights: Tensor, written: Callable[[], Tensor]) -> Tensor:
        return normalise_log_weights(log_weights + written())


def normalise_log_weights(log_weights: Tensor) -> Tensor:
    """The weights (B, K, …) made to sum to one; all alike where a text can't come at all."""
    total = torch.logsumexp(log_weights, dim=1, keepdim=True)
    possible = total > -torch.inf
    alike = log_weights.new_tensor(1 / log_weights.shape[1]).log()
    return torch.where(possible, log_weights - total.where(possible, 0), alike)
