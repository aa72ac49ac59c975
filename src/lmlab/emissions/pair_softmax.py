"""Pair softmax emission: softmax over the sum of two sources, for all pairs at once."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.pair_normalisers import (
    pair_log_normalisers,
    pairs_within,
)


class PairSoftmax(Softmax):
    """Softmax of pairs less than `reach` apart: p(k | a, b) = softmax_k(e_k · (x_a + y_b) + b_k).

    The fast version of `Softmax` over the sums of `TwoLatentParents`: it takes the two halves of
    each token, (…, S, 2 W), and gives P pairs, in the order of `pairs_within`. Their normalisers
    are inner products of exponentials: two softmaxes per token instead of 2 · reach - 1.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"sources"})

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        reach: int | None,
        tied: nn.Embedding | None = None,
    ) -> None:
        super().__init__(width, vocabulary, tied=tied)
        self.max_distance = reach

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        raise TypeError("PairSoftmax predicts from pairs of sources; ask for pair_log_prob")

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(…, P, V) from (…, S, 2 W)."""
        first, second = hidden.chunk(2, dim=-1)
        a, b = pairs_within(self.max_distance, hidden.shape[-2], hidden.device)
        return super().log_probs(first[..., a, :] + second[..., b, :])

    def log_prob_by_source(self, sources: Tensor, targets: Tensor) -> Tensor:
        """(B, T, P) from (B, S, 2 W) and targets (B, T)."""
        first, second = sources.chunk(2, dim=-1)
        a, b = pairs_within(self.max_distance, sources.shape[1], sources.device)
        outputs, offsets = self.weight[targets], self._biases()
        left = outputs @ first.transpose(1, 2) + offsets[targets][..., None]
        right = outputs @ second.transpose(1, 2)
        normalisers = pair_log_normalisers(first, second, self.weight, offsets)
        return left[..., a] + right[..., b] - normalisers[:, None, a, b]
