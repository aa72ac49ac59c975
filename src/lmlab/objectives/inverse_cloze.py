"""Inverse cloze task: a span of a text is the query for the rest of it (Lee et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.special_tokens import add_special_tokens, content_lengths
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.per_example_rng import per_example_uniform


@dataclass(frozen=True, kw_only=True, eq=False)
class QuestionDocumentPairs:
    """Pseudo-question and document made from each of B texts."""

    questions: Batch
    documents: Batch


@dataclass(frozen=True, kw_only=True)
class InverseClozeTask:
    """Inverse cloze: a random span of at most half of a text is the query, the rest the document.

    Lee et al. take a sentence out of a passage; our texts are often one sentence, so the span is a
    run of its tokens. With probability `keep_rate` it also stays in the document, so that lexical
    overlap is learned too (Lee et al.: 0.1). A text of one token is a query for an empty document.
    """

    vocabulary: Vocabulary
    keep_rate: float = 0.1

    def sample(
        self, batch: Batch, *, generator: torch.Generator | None = None
    ) -> QuestionDocumentPairs:
        """Sample one split of each text."""
        lengths = content_lengths(batch, self.vocabulary)
        uniforms = per_example_uniform((len(batch), 3), lengths.device, generator=generator)
        max_count = (lengths // 2).clamp(min=1)
        count = torch.minimum(1 + (uniforms[:, 0] * max_count).long(), lengths)
        first = (uniforms[:, 1] * (lengths - count + 1)).long()
        return self.split(batch, first, count, keep_span=uniforms[:, 2] < self.keep_rate)

    def every(self, batch: Batch) -> Iterator[tuple[Tensor, QuestionDocumentPairs]]:
        """All splits that take half of a text, with (B,) whether a text has such a split."""
        lengths = content_lengths(batch, self.vocabulary)
        count = torch.minimum((lengths // 2).clamp(min=1), lengths)
        last = lengths - count
        for start in range(int(last.max()) + 1 if len(batch) else 0):
            first = last.clamp(max=start)
            yield (
                last >= start,
                self.split(batch, first, count, keep_span=torch.zeros_like(last).bool()),
            )

    def split(
        self, batch: Batch, first: Tensor, count: Tensor, *, keep_span: Tensor
    ) -> QuestionDocumentPairs:
        """Spans of `count` (B,) tokens from `first` (B,), counted without <s>, and the rest."""
        inner, lengths = batch.tokens[:, 1:], content_lengths(batch, self.vocabulary)
        question = _take_tokens(inner, first[:, None], count, self.vocabulary)
        removed = count.masked_fill(keep_span, 0)
        positions = torch.arange(max(inner.shape[1], 1), device=inner.device)
        skipped = (positions >= first[:, None]) * removed[:, None]
        rest = _take_tokens(inner, skipped, lengths - removed, self.vocabulary)
        return QuestionDocumentPairs(
            questions=add_special_tokens(question, count, self.vocabulary, rows=batch.rows),
            documents=add_special_tokens(rest, lengths - removed, self.vocabulary, rows=batch.rows),
        )


def _take_tokens(inner: Tensor, shift: Tensor, count: Tensor, vocabulary: Vocabulary) -> Tensor:
    """(B, L) the first `count` (B,) tokens, each from `shift` (B, 1 or T) positions further on."""
    positions = torch.arange(int(count.max()) if len(count) else 0, device=inner.device)
    shift = shift.expand(-1, max(shift.shape[1], len(positions)))[:, : len(positions)]
    inside = positions < count[:, None]
    index = torch.where(inside, positions + shift, 0)
    return torch.where(inside, inner.gather(1, index), vocabulary.pad)
