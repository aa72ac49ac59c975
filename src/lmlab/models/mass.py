"""MASS (Song et al. 2019): the joint distribution of a masked span, and blanks of any length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.joint_distribution import RankedFilling, most_probable_fillings
from lmlab.core.state import State
from lmlab.models.causal_lm import FieldwiseState, split_answers
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.masked_span import MASSObjective

SPAN_BEAM = 64
"""Minimum beam size of a search for the most probable spans."""


class MASS(EncoderDecoderLM):
    """MASS (Song et al. 2019): the decoder generates a masked span, by default of known length."""

    objective: MASSObjective
    validation_metric = "loss"
    one_span: ClassVar[bool] = True
    """The masked positions of a text must be adjacent."""

    def joint_fill(self, batch: Batch, masked: Tensor) -> SpanDistribution:
        """The joint distribution of the span of masks in each row of the batch, (B, T) bool."""
        size = masked.sum(1)
        first = masked.long().argmax(1).clamp(min=1)
        position = torch.arange(masked.shape[1], device=masked.device)
        in_span = (position >= first[:, None]) & (position < (first + size)[:, None])
        if not torch.equal(in_span, masked):
            raise UserError(
                "this system generates one span per text, so its masks must be adjacent; mask "
                "one span, or use a system that fills positions apart (bert, span-joint)."
            )
        return SpanDistribution(self, batch, masked, first, size)

    def infill_decoder(self, batch: Batch) -> SpanInfillDecoder:
        """The decoder of blanks of any length, for a model that was trained on such."""
        if not self.objective.blank_rate:
            raise UserError(
                "this run was trained on spans whose length the source shows, so give one <mask> "
                "for each token, without --blanks and --among; or train it with --set "
                "blank_rate=0.5."
            )
        return SpanInfillDecoder(self, batch)


@dataclass(frozen=True, eq=False)
class SpanDistribution:
    """Exact joint of a span: log p(a_1 … a_k | text) = Σ_i log p(a_i | a_<i, text with k masks)."""

    system: MASS
    batch: Batch
    masked: Tensor
    """(B, T) bool: one span in each row."""
    first: Tensor
    """(B,) its first position."""
    size: Tensor
    """(B,) its number of tokens."""

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of the spans whose tokens (N,) are given in reading order."""
        filled = self.batch.tokens.masked_scatter(self.masked, tokens)
        batch = replace(self.batch, tokens=filled)
        view = self.system.objective.fill_view(batch, self.masked, self.first, self.size)
        return self.system.target_log_probs(view).to_dense().sum(1)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens sampled one after another."""
        rows = torch.arange(len(self.batch), device=self.masked.device)
        filled = self.batch.tokens.clone()
        for offset in range(int(self.size.max()) if len(rows) else 0):
            sampled = Categorical(self._next(rows, filled, offset)).sample(generator=generator)
            unfinished = offset < self.size
            filled[rows[unfinished], self.first[unfinished] + offset] = sampled[unfinished]
        return filled[self.masked]

    def best(self) -> Tensor:
        """(N,) the most probable tokens of each row by beam search."""
        return most_probable_fillings(self, len(self.batch), self.masked.device)

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The most probable spans of one row by beam search.

        A rank is proven where no pruned hypothesis, whose score bounds those of all its
        continuations, was more probable.
        """
        width, best_pruned = max(SPAN_BEAM, count), -math.inf
        first, size = int(self.first[row]), int(self.size[row])
        filled = self.batch.tokens[row : row + 1].clone()
        totals = torch.zeros(1, dtype=torch.float64, device=filled.device)
        for offset in range(size):
            rows = torch.full((len(filled),), row, device=filled.device)
            log_probs = self._next(rows, filled, offset).double()
            scores = (totals[:, None] + log_probs).flatten()
            best = scores.topk(min(width + 1, int((scores > -math.inf).sum())))
            if len(best.values) > width:
                best_pruned = max(best_pruned, float(best.values[width]))
            selected, totals = best.indices[:width], best.values[:width]
            filled = filled[selected // log_probs.shape[1]]
            filled[:, first + offset] = selected % log_probs.shape[1]
        spans = filled[:, first : first + size].tolist()
        return [
            RankedFilling(tokens=tuple(span), log_prob=total, proven=total >= best_pruned)
            for span, total in list(zip(spans, totals.tolist(), strict=True))[:count]
        ]

    def _next(self, rows: Tensor, filled: Tensor, offset: int) -> Tensor:
        """(R, V) log-probabilities of token `offset` of the spans of these rows' texts (R, T)."""
        masked, first = self.masked[rows], self.first[rows]
        batch = replace(self.batch.select(rows.tolist()), tokens=filled)
        size = self.size[rows].clamp(max=offset + 1)
        view = self.system.objective.fill_view(batch, masked, first, size)
        hidden = self.system.hidden(view).values
        last = (size - 1).clamp(min=0)
        values = hidden[torch.arange(len(rows), device=last.device), last]
        log_probs: Tensor = self.system.emission.log_probs(values)
        return log_probs


@dataclass(frozen=True, eq=False)
class SpanInfillState(FieldwiseState):
    """What has been generated for the blanks of some texts."""

    texts: Tensor
    """(rows,) the row of the batch that each fills."""
    tokens: Tensor
    """(rows, n) the tokens so far: answers with separators between them."""


class SpanInfillDecoder:
    """Infilling blank by blank: p(a, </s> | text with one mask for the blank).

    Later blanks are single masks, and earlier ones are filled in, so that each is the one span of
    its text that MASS generates: a_1 … [SEP] b_1 … </s>, where [SEP] has the probability of the end
    token. Cost: one pass of encoder and decoder per token.
    """

    def __init__(self, system: MASS, batch: Batch) -> None:
        self.system = system
        self.device = batch.tokens.device
        self.mask = system.objective.special_tokens.mask
        self.rows = [
            row[:length]
            for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
        ]
        if not all(self.mask in row for row in self.rows):
            raise UserError("a text to fill must have at least one blank, got none.")
        self.separator = system.vocabulary.size
        self.vocabulary = replace(system.vocabulary, size=self.separator + 1)
        assert system.vocabulary.end is not None, "a trained blank has an end"
        self.end = system.vocabulary.end
        self.answer_tokens = torch.ones(self.separator + 1, dtype=torch.bool, device=self.device)
        self.answer_tokens[[*system.vocabulary.unpredictable, self.end, self.separator]] = False

    def start(self, rows: int, *, condition: Batch | None = None) -> SpanInfillState:
        assert rows == len(self.rows), "each row has its own blanks"
        texts = torch.arange(rows, device=self.device)
        return SpanInfillState(texts, texts.new_zeros(rows, 0))

    def peek(self, state: State) -> Categorical:
        """(rows, V and the separator); the end token is possible in the last blank only."""
        assert isinstance(state, SpanInfillState)
        texts, answers = self._partly_filled(state)
        first = [text.index(self.mask) for text in texts]
        view = self.system.objective.blank_view(texts, first, answers, self.device)
        rows = torch.arange(len(texts), device=self.device)
        last = torch.tensor([len(answer) for answer in answers], device=self.device)
        log_probs = self.system.emission.log_probs(self.system.hidden(view).values[rows, last])
        full = torch.tensor([self._is_full(*pair) for pair in zip(texts, answers, strict=True)])
        no_end = torch.arange(log_probs.shape[1], device=self.device) != self.end
        log_probs = log_probs.masked_fill(full.to(self.device)[:, None] & no_end, -math.inf)
        more = torch.tensor([text.count(self.mask) > 1 for text in texts], device=self.device)
        ends, never = log_probs[:, self.end], torch.full_like(log_probs[:, 0], -math.inf)
        outputs = torch.cat([log_probs, torch.where(more, ends, never)[:, None]], 1)
        outputs[:, self.end] = torch.where(more, never, ends)
        return Categorical(outputs)

    def advance(self, state: State, tokens: Tensor) -> SpanInfillState:
        assert isinstance(state, SpanInfillState)
        return SpanInfillState(state.texts, torch.cat([state.tokens, tokens[:, None]], 1))

    def max_generation_length(self, condition: int | None) -> int | None:
        return None

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return split_answers(tokens, [self.separator], self.rows[row].count(self.mask))

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        first, *others = answers
        return [*first, *(token for answer in others for token in (self.separator, *answer))]

    def _partly_filled(self, state: SpanInfillState) -> tuple[list[list[int]], list[list[int]]]:
        """Each text with its finished answers, and the answer that is being generated."""
        texts, answers = [], []
        for number, tokens in zip(state.texts.tolist(), state.tokens.tolist(), strict=True):
            *finished, current = split_answers(tokens, [self.separator], 1)
            filled = iter(finished)
            parts = [
                next(filled, (token,)) if token == self.mask else (token,)
                for token in self.rows[number]
            ]
            texts.append(list(itertools.chain.from_iterable(parts)))
            answers.append(list(current))
        return texts, answers

    def _is_full(self, text: list[int], answer: list[int]) -> bool:
        """Whether the text with another token of the answer would be too long."""
        positions = self.system.backbone.max_positions
        return positions is not None and len(text) + len(answer) >= positions
