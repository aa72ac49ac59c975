"""Autoregressive blank infilling (GLM): span samplers; masked spans generated after the text.

Du et al. 2022: attention over the text is bidirectional, over the generated spans causal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network, Objective
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.block_masks import TokenBlock, join_blocks, log_probs_by_clean_position
from lmlab.objectives.denoising_base import numpy_generator
from lmlab.objectives.masking.token_masking import maskable_positions

Span = tuple[int, int]
"""First token of a span, counted from 0, and its length."""


class SpanSampler(Protocol):
    """Samples the spans to mask in a text of a given number of tokens."""

    def __call__(self, tokens: int, random: np.random.Generator) -> list[Span]:
        """Spans from left to right, with at least one token between two of them."""
        ...


@dataclass(frozen=True, kw_only=True)
class PoissonSpans:
    """Spans of Poisson(`mean`) tokens, at least one each, until `rate` of the text is masked.

    Lengths are sampled one after another, and the last may overshoot; the layout is uniform over
    all ways to place the spans (Du et al. 2022: mean 3, rate 0.15).
    """

    rate: float = 0.15
    mean: float = 3.0

    def __call__(self, tokens: int, random: np.random.Generator) -> list[Span]:
        lengths: list[int] = []
        while tokens and sum(lengths) < self.rate * tokens:
            lengths.append(self.length(random))
        # A token separates two blanks; spans that do not fit are dropped.
        while lengths and sum(lengths) + len(lengths) - 1 > tokens:
            surplus = sum(lengths) + len(lengths) - 1 - tokens
            lengths[-1] -= surplus
            lengths = [length for length in lengths if length > 0]
        random.shuffle(lengths)
        return place_spans(lengths, tokens, random)

    def length(self, random: np.random.Generator) -> int:
        """Sample k ≥ 1 with probability mean^k / k! / (e^mean - 1), from one number in [0, 1)."""
        length, share = 1, self.mean / math.expm1(self.mean)
        remaining = random.random() - share
        while remaining >= 0 and share > 0:
            length += 1
            share *= self.mean / length
            remaining -= share
        return length


@dataclass(frozen=True, kw_only=True)
class LongSpan:
    """One span, its length uniform from `min_share` to all of the text (Du et al. 2022: 0.5)."""

    min_share: float = 0.5

    def __call__(self, tokens: int, random: np.random.Generator) -> list[Span]:
        if not tokens:
            return []
        min_length = max(1, int(np.ceil(self.min_share * tokens)))
        return place_spans([int(random.integers(min_length, tokens + 1))], tokens, random)


@dataclass(frozen=True, kw_only=True)
class SpanMixture:
    """Mixture of two span samplers: `second` with `second_probability`, sampled per text."""

    first: SpanSampler
    second: SpanSampler
    second_probability: float = 0.5

    def __call__(self, tokens: int, random: np.random.Generator) -> list[Span]:
        sampler = self.second if random.random() < self.second_probability else self.first
        return sampler(tokens, random)


def place_spans(lengths: Sequence[int], tokens: int, random: np.random.Generator) -> list[Span]:
    """Place spans of these lengths, in order, uniformly over layouts with tokens between."""
    count = len(lengths)
    free = tokens - sum(lengths) - max(count - 1, 0)
    assert free >= 0, "the spans must fit"
    # Each span plus the token after it counts as one item among the free tokens.
    slots = np.sort(random.choice(free + count, count, replace=False)).tolist()
    spans, taken = [], 0
    for index, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        spans.append((slot - index + taken, length))
        taken += length + 1
    return spans


class BlankInfilling(Objective):
    """GLM: -Σ_spans Σ_j log p(s_j | text with blanks, earlier spans, s_<j), in random span order.

    Part A is the text with one <mask> per span; it attends to itself bidirectionally. Part B holds
    the spans in shuffled order, each with input [START] s_1 … s_l and targets s_1 … s_l [END]; it
    attends to A and to its own past. Positions are pairs: the position in A (that of its <mask> for
    a span), and the position within the span from 1 on, 0 in A; so the length of a blank is never
    visible. [END] is the end token; [START], `start`, is an id added by the model. Not `shuffled`,
    spans are generated from left to right: an ablation of the paper.

    log_prob is exact: the whole text is one blank, log p(s) = log p(s | <s> <mask> </s>). A
    condition precedes the blank: log p(s | <s> x <mask> </s>), which is also the training loss
    where the batch has one.
    """

    kind: ClassVar[ScoreKind] = "exact"
    extra_positions = 1  # part A has the last token too

    def __init__(
        self,
        vocabulary: Vocabulary,
        spans: SpanSampler,
        *,
        start: int,
        max_length: int | None = None,
        shuffled: bool = True,
    ) -> None:
        super().__init__()
        assert vocabulary.end is not None and vocabulary.mask is not None
        self.vocabulary = vocabulary
        self.end, self.mask = vocabulary.end, vocabulary.mask
        self.spans = spans
        self.start = start
        self.symbols = {start: "[START]"}
        """Labels of the added ids in figures."""
        self.shuffled = shuffled
        self.max_length = max_length
        """Maximum number of positions in part A."""

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None:
            return self.single_blank_view(batch)
        random = numpy_generator(generator)
        counts = maskable_positions(batch, self.vocabulary).sum(1).tolist()
        sampled = [self.spans(count, random) for count in counts]
        orders = [
            random.permutation(len(spans)).tolist() if self.shuffled else list(range(len(spans)))
            for spans in sampled
        ]
        return self.view_with_spans(batch, sampled, orders)

    def view_with_spans(
        self, batch: Batch, spans: Sequence[Sequence[Span]], orders: Sequence[Sequence[int]]
    ) -> View:
        """The batch with these spans of each row masked, generated in the order `orders`.

        Spans count from position 1, that of a text's first token.
        """
        within, order = np.zeros((2, *batch.tokens.shape), dtype=np.int64)
        for row, (row_spans, row_order) in enumerate(zip(spans, orders, strict=True)):
            for (first, length), rank in zip(row_spans, row_order, strict=True):
                inside = slice(1 + first, 1 + first + length)
                within[row, inside], order[row, inside] = np.arange(1, length + 1), rank
        device = batch.tokens.device
        return self._build_view(
            batch, torch.from_numpy(within).to(device), torch.from_numpy(order).to(device)
        )

    def _build_view(self, batch: Batch, within: Tensor, order: Tensor) -> View:
        """`within` (B, T): 1-based position of each masked token in its span, 0 elsewhere; `order`
        (B, T): when its span is generated."""
        tokens, time = batch.tokens, batch.tokens.shape[1]
        masked, is_first = within > 0, within == 1
        in_part_a = batch.mask() & (~masked | is_first)
        # Inside a span only its mask is kept, so its tokens count up to that.
        in_text = in_part_a.long().cumsum(1) - 1
        positions = torch.arange(time, device=tokens.device).expand_as(tokens)
        continues = torch.cat([within[:, 1:] > 1, torch.zeros_like(is_first[:, :1])], 1)
        text = TokenBlock(
            inputs=tokens.masked_fill(is_first, self.mask),
            real=in_part_a,
            positions=torch.stack([in_text, torch.zeros_like(in_text)], -1),
            ranks=0,
        )
        rank = 1 + order * (time + 1)
        starts = TokenBlock(
            inputs=torch.full_like(tokens, self.start),
            real=is_first,
            positions=torch.stack([in_text, torch.ones_like(in_text)], -1),
            ranks=rank,
            targets=tokens,
            clean_positions=positions,
        )
        generated = TokenBlock(
            inputs=tokens,
            real=masked,
            positions=torch.stack([in_text, within + 1], -1),
            ranks=rank + within,
            targets=tokens.roll(-1, 1).masked_fill(~continues, self.end),
            clean_positions=(positions + 1).masked_fill(~continues, -1),
        )
        return join_blocks([text, starts, generated], pad=self.vocabulary.pad)

    def single_blank_view(self, batch: Batch) -> View:
        """All after position 0 or the condition as one blank; a truncated text has no [END]."""
        part_a = self.part_a(batch.condition, batch.tokens[:, 0])
        targets = batch.tokens[:, 1:]
        starts = torch.full_like(batch.tokens[:, :1], self.start)
        positions = torch.arange(1, batch.tokens.shape[1], device=targets.device).expand_as(targets)
        blank_positions = part_a.blanks.expand_as(targets)
        text = TokenBlock(
            inputs=part_a.view.inputs,
            real=torch.arange(part_a.view.inputs.shape[1], device=targets.device)
            < part_a.view.lengths[:, None],
            positions=part_a_positions(part_a.view.inputs),
            ranks=0,
        )
        generated = TokenBlock(
            inputs=torch.cat([starts, targets[:, :-1]], 1),
            real=batch.targets_mask()[:, 1:],
            positions=torch.stack([blank_positions, positions], -1),
            ranks=positions,
            targets=targets,
            clean_positions=positions,
        )
        return join_blocks([text, generated], pad=self.vocabulary.pad)

    def part_a(self, condition: Batch | None, first: Tensor) -> PartA:
        """Part A with a single blank: `first` (B,) or the condition, <mask>, </s>."""
        if condition is None:
            marks = torch.tensor([self.mask, self.end], device=first.device)
            tokens = torch.cat([first[:, None], marks.expand(len(first), 2)], 1)
            lengths = torch.full_like(first, 3)
            return PartA(self.text_view(tokens, lengths), torch.ones_like(first)[:, None])
        last = condition.tokens.gather(1, condition.lengths[:, None] - 1)
        blank = condition.lengths[:, None] - (last == self.end).long()
        positions = torch.arange(condition.tokens.shape[1] + 1, device=first.device)
        source = (positions - (positions > blank).long()).clamp(max=condition.tokens.shape[1] - 1)
        tokens = condition.tokens.gather(1, source).masked_fill(positions == blank, self.mask)
        return PartA(self.text_view(tokens, condition.lengths + 1), blank)

    def text_view(self, tokens: Tensor, lengths: Tensor) -> View:
        """A text as part A, without targets."""
        if self.max_length is not None and int(lengths.max()) > self.max_length:
            raise UserError(
                f"a text with blanks may have at most {self.max_length} tokens, got "
                f"{int(lengths.max())}; shorten it, or train with a larger --set length=…."
            )
        return View(
            inputs=tokens,
            lengths=lengths,
            attention_mask=FullMask(),
            positions=part_a_positions(tokens),
        )

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        return log_probs_by_clean_position(network, self.single_blank_view(batch), batch)


@dataclass(frozen=True, eq=False)
class PartA:
    """Part A and the positions of its blanks."""

    view: View
    blanks: Tensor
    """(B, n) positions of its masks."""


def part_a_positions(tokens: Tensor) -> Tensor:
    """(B, T, 2) positions of part A: (0, 0), (1, 0), (2, 0) …"""
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return torch.stack([positions, torch.zeros_like(positions)], -1)
