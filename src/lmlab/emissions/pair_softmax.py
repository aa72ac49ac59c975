"""Softmax of the sum of two context vectors, for all pairs at once by a fast log-normaliser."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.matrix_product import linear

_ROWS_AT_ONCE = 1024
"""Rows of logits held at once, which bounds the memory of scoring."""


def pairs_within(
    max_distance: int | None, count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(P,), (P,) ordered pairs of `count` positions less than `max_distance` apart."""
    positions = torch.arange(count, device=device)
    distance = (positions[:, None] - positions).abs()
    first, second = (distance < (count if max_distance is None else max_distance)).nonzero(
        as_tuple=True
    )
    return first, second


def pair_log_normalisers_clear(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """(B, S, S) log Σ_k exp(e_k · (x_a + y_b) + b_k) of x (B, S, W) and y (B, S, W): S² V W."""
    sums = first[:, :, None] + second[:, None, :]
    return torch.logsumexp(F.linear(sums, weight, bias), dim=-1)


def pair_log_normalisers(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same as an inner product over the vocabulary, of cost 2 S V W + S² V.

    Σ_k exp(e_k·x_a + b_k) exp(e_k·y_b), each factor divided by its largest. If the probable tokens
    of x_a and those of y_b are some 85 nats apart, the product underflows in single precision and
    is clamped to the smallest positive number, so nothing is infinite.
    """
    rows = max(1, _ROWS_AT_ONCE // max(1, first.shape[1]))
    blocks = zip(first.split(rows), second.split(rows), strict=True)
    return torch.cat([_block(x, y, weight, bias) for x, y in blocks])


def _block(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    left, highest_left = _powers(linear(first, weight, bias))
    right, highest_right = _powers(linear(second, weight))
    product = left @ right.transpose(1, 2)
    smallest = torch.finfo(product.dtype).tiny
    return product.clamp(min=smallest).log() + highest_left + highest_right.transpose(1, 2)


def _powers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """exp(logits - max) in the logits' own memory, and the maximum of each row."""
    highest = logits.detach().amax(-1, keepdim=True)
    return logits.sub_(highest).exp_(), highest


class PairSoftmax(Softmax):
    """Pair softmax p(k | a, b) = softmax_k(e_k · (x_a + y_b) + b_k), |a - b| < `max_distance`.

    The fast version of `Softmax` over the sums of `TwoLatentParents`: it takes the two halves of
    each token, (…, S, 2 W), and gives P pairs, in the order of `pairs_within`. Their normalisers
    are inner products of exponentials: two softmaxes per token instead of 2 · max_distance - 1.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"sources"})

    def __init__(
        self,
        width: int,
        vocabulary: Vocabulary,
        *,
        max_distance: int | None,
        tied: nn.Embedding | None = None,
    ) -> None:
        super().__init__(width, vocabulary, tied=tied)
        self.max_distance = max_distance

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N, P) from (N, S, 2 W) and targets (N,), one for all pairs of its sources."""
        return self.log_prob_by_source(hidden, targets[:, None])[:, 0]

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
