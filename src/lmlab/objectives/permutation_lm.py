"""Permutation language modelling (XLNet): predict tokens in a random factorisation order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Network, Objective
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.denoising_base import numpy_generator
from lmlab.objectives.sentence_pairs import TwoSegments

TEXT_SEGMENT, CLS_SEGMENT = 0, 2
"""Segment ids: the text, and its start token, which has its own like [CLS] in XLNet."""


class PermutationLM(Objective):
    """XLNet: -Σ_{t > c} log p(x_{z_t} | x_{z_<t}), z a uniformly random factorisation order.

    Yang et al. 2019. Position 0 is context and comes first; all other tokens, including the end
    token, come in the order z. The content stream at z_t sees z_≤t, the query stream z_<t. Partial
    prediction: the last n / `partial_prediction` tokens of the order are targets (rounded, at least
    one; the paper's K = 6), since the first have too little context. With `max_span` the targets
    are spans of 1 to so many tokens instead, each in a context of K times its length, and come last
    in a random order (the paper's 5). A share `left_to_right_rate` of the texts, none in the paper,
    is predicted completely in that order. `pairs` splits texts in two segments, `<s> A </s> B
    </s>`, where B may come from another text; the start token has its own segment, as [CLS].

    `log_prob` is exact: log p(s) = Σ_t log p(s_t | s_<t), in left-to-right order. A prediction sees
    the tokens before it and its own position, neither the text's length nor the rest of the batch.
    In training the last position is always the end token's, and positions are predicted more often
    in short texts; so single sentences end too soon unless some were trained left to right. Texts
    of more than `segment_length` tokens are processed in segments, each of which attends to the
    backbone's memory of earlier ones.
    """

    kind: ClassVar[ScoreKind] = "exact"

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        partial_prediction: int = 6,
        max_span: int = 0,
        left_to_right_rate: float = 0.0,
        segment_length: int = 512,
        pairs: TwoSegments | None = None,
    ) -> None:
        super().__init__()
        self.max_span = max_span
        self.pairs = pairs
        self.vocabulary = vocabulary
        self.partial_prediction = partial_prediction
        self.left_to_right_rate = left_to_right_rate
        self.segment_length = segment_length

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if self.pairs is None:
            return self.text_view(batch, generator)
        packed = self.pairs.pack(batch, generator=generator)
        view = self.text_view(packed.batch, generator)
        assert (
            view.targets is not None and view.segments is not None and packed.segments is not None
        )
        targets = view.targets != NO_TARGET
        return replace(
            view,
            segments=torch.where(packed.segments == 1, 1, view.segments),
            clean_positions=packed.positions.masked_fill(~targets, -1),
            clean_rows=packed.rows,
        )

    def text_view(self, batch: Batch, generator: torch.Generator | None) -> View:
        """Each row as one text, or as two that are joined already."""
        order = sample_factorisation_order(batch, generator=generator)
        count = (batch.lengths - 1).clamp(min=0)
        predicted = predicted_count(count, 1 / self.partial_prediction)
        if self.max_span:
            random = numpy_generator(generator)
            spans = sample_target_spans(
                count.tolist(), self.max_span, self.partial_prediction, random
            )
            is_target = F.pad(spans, (0, order.shape[1] - spans.shape[1])).to(order.device)
            predicted = is_target.sum(1)
            # Targets come last in the order, before the padding.
            order = order_ranks(order + order.shape[1] * (is_target + 2 * ~batch.mask()))
        if self.left_to_right_rate:
            left_to_right = (
                sample_uniform(count.shape, count.device, generator=generator)
                < self.left_to_right_rate
            )
            order = torch.where(left_to_right[:, None], left_to_right_order(batch.tokens), order)
            predicted = torch.where(left_to_right, count, predicted)
        target_mask = batch.targets_mask() & (order > (count - predicted)[:, None])
        return self.ordered_view(batch, order, target_mask)

    def ordered_view(self, batch: Batch, order: Tensor, target_mask: Tensor) -> View:
        """The batch in the factorisation order `order` (B, T), with targets at `target_mask`."""
        return View(
            inputs=batch.tokens,
            lengths=batch.lengths,
            attention_mask=ExplicitMask(order[:, None, :] <= order[:, :, None]),
            query_attention_mask=ExplicitMask(order[:, None, :] < order[:, :, None]),
            order=order,
            segments=self.segments(batch.tokens),
            targets=batch.tokens.masked_fill(~target_mask, NO_TARGET),
            clean_positions=left_to_right_order(batch.tokens).masked_fill(~target_mask, -1),
        )

    def segments(self, tokens: Tensor) -> Tensor:
        """(B, T) text segment, except for a start token at position 0."""
        segments = torch.full_like(tokens, TEXT_SEGMENT)
        if self.vocabulary.start is not None:
            segments[:, 0] = torch.where(
                tokens[:, 0] == self.vocabulary.start, CLS_SEGMENT, TEXT_SEGMENT
            )
        return segments

    def scoring_view(self, batch: Batch) -> View:
        """Every token predicted from those before it."""
        return self.ordered_view(batch, left_to_right_order(batch.tokens), batch.targets_mask())

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The positions of `masked` (B, T) last, at the same step: none of them sees another."""
        return self.ordered_view(batch, masked.long(), masked)

    def clean_view(self, batch: Batch) -> View:
        """The whole text with full attention and no targets, as in fine-tuning."""
        return View(
            inputs=batch.tokens,
            lengths=batch.lengths,
            attention_mask=FullMask(),
            segments=self.segments(batch.tokens),
        )

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        log_probs = []
        for part in split_batch(batch, self.segment_length):
            predictions = network.target_log_probs(self.scoring_view(part), state)
            state = predictions.state
            log_probs.append(predictions.to_dense()[:, 1:])
        return LogProbs(per_token=torch.cat(log_probs, 1), kind=self.kind, state=state)


def sample_factorisation_order(batch: Batch, *, generator: torch.Generator | None = None) -> Tensor:
    """(B, T) ranks: 0 at position 0, a random permutation of 1 … n after it, then padding."""
    uniforms = sample_uniform(batch.tokens.shape, batch.tokens.device, generator=generator)
    uniforms = uniforms.masked_fill(~batch.mask(), 2.0)
    uniforms[:, 0] = -1.0
    return order_ranks(uniforms)


def sample_target_spans(
    counts: Sequence[int], max_span: int, ratio: int, random: np.random.Generator
) -> Tensor:
    """(B, T) bool: target spans in texts of `counts` tokens at positions 1, 2 … (T - 1 at most).

    A span of L tokens, L uniform in 1 … `max_span`, is at a uniformly random place in a context of
    `ratio` · L tokens; the next context follows it (Yang et al. 2019: 5 and 6). The last context is
    what is left of the text, and a text has at least one target.
    """
    is_target = torch.zeros(len(counts), 1 + max(counts, default=0), dtype=torch.bool)
    for row, count in enumerate(counts):
        start = 0
        while start < count:
            length = int(random.integers(1, max_span + 1))
            context = min(ratio * length, count - start)
            length = min(length, max(round(context / ratio), int(start == 0)))
            first = start + int(random.integers(0, context - length + 1))
            is_target[row, 1 + first : 1 + first + length] = True
            start += context
    return is_target


def left_to_right_order(tokens: Tensor) -> Tensor:
    """(B, T) ranks in left-to-right order: 0, 1, 2 …"""
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


def order_ranks(keys: Tensor) -> Tensor:
    """(B, T) rank of each position's random number within its row."""
    return keys.argsort(dim=1, stable=True).argsort(dim=1)


def predicted_count(count: Tensor, share: float) -> Tensor:
    """(B,) number of targets among `count` positions: the rounded share, at least one."""
    rounded = (count * share).round().long().clamp(min=1)
    return torch.minimum(rounded, count)


def split_batch(batch: Batch, max_length: int) -> Iterator[Batch]:
    """Split the batch into segments of at most `max_length` targets after one context token."""
    for first in range(0, max(1, batch.tokens.shape[1] - 1), max_length):
        tokens = batch.tokens[:, first : first + max_length + 1]
        lengths = (batch.lengths - first).clamp(min=0, max=tokens.shape[1])
        yield replace(batch, tokens=tokens, lengths=lengths)
