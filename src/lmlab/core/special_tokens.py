"""Special tokens around texts: start, end, segment ids, and T5's sentinels for masked spans."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary


def content_lengths(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B,) tokens of each text without position 0 and without an end token."""
    last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None])[:, 0]
    ended = (last == vocabulary.end) & (batch.lengths > 1)
    return (batch.lengths - 1 - ended.long()).clamp(min=0)


def segment_ids(tokens: Tensor, vocabulary: Vocabulary) -> Tensor | None:
    """(B, T) segment ids of two texts: 0 up to the first end token, 1 after it.

    None if texts have no end token.
    """
    if vocabulary.end is None:
        return None
    ended = (tokens == vocabulary.end).long()
    return (ended.cumsum(1) - ended).clamp(max=1)


def add_special_tokens(
    tokens: Tensor, lengths: Tensor, vocabulary: Vocabulary, *, rows: Tensor | None = None
) -> Batch:
    """Texts (M, L) of `lengths` (M,) with a start and, if there is one, an end token."""
    ends = int(vocabulary.end is not None)
    padded = F.pad(tokens, (1, ends), value=vocabulary.pad)
    padded[:, 0] = vocabulary.bos
    if vocabulary.end is not None:
        padded.scatter_(1, (lengths + 1)[:, None], vocabulary.end)
    if rows is None:
        rows = torch.arange(len(tokens), device=tokens.device)
    return Batch(tokens=padded, lengths=lengths + 1 + ends, rows=rows)


@dataclass(frozen=True, kw_only=True)
class SentinelTokens:
    """Sentinel tokens X_0, X_1 … (T5): stand for masked spans, and precede them in the output.

    A span ends where the decoder generates the next sentinel or the end token. So the probability
    that it ends is the sum of theirs, and nothing needs to be renormalised.
    """

    ids: tuple[int, ...]
    """X_0, X_1 …; empty if nothing is ever masked."""
    end: int
    """The end token of the output."""

    @classmethod
    def allocate(
        cls, vocabulary: Vocabulary, count: int, *, first: int = -1, step: int = 1
    ) -> tuple[SentinelTokens, Vocabulary]:
        """`count` sentinels, and the vocabulary that contains them.

        Their ids are appended to the given vocabulary, or start at `first` if it has them.
        """
        if vocabulary.end is None:
            raise UserError(
                "a system with sentinels needs an end token, and this tokenizer has none; use "
                "one with </s>."
            )
        output_vocabulary = vocabulary if first >= 0 else vocabulary.extended(count)
        start, step = (first, step) if first >= 0 else (vocabulary.size, 1)
        ids = tuple(start + step * number for number in range(count))
        if step == 0 or not 0 <= min(ids) <= max(ids) < output_vocabulary.size:
            raise UserError(
                f"{count} sentinels from id {first} in steps of {step} do not fit a vocabulary of "
                f"{output_vocabulary.size}; change first_sentinel, sentinel_step or sentinels."
            )
        return cls(ids=ids, end=vocabulary.end), output_vocabulary

    @property
    def span_end_tokens(self) -> list[int]:
        """All tokens that can end a span."""
        return [self.end, *self.ids]

    def log_span_end(self, log_probs: Tensor) -> Tensor:
        """(…) log-probability that the span ends, given the next token's (…, V)."""
        return log_probs[..., self.span_end_tokens].logsumexp(-1)

    def merge_span_ends(self, token: Tensor, log_probs: Tensor) -> Tensor:
        """(rows, V) the same, with the mass of all span-ending tokens moved to `token` (rows,)."""
        merged = log_probs.clone()
        merged[:, self.span_end_tokens] = float("-inf")
        return merged.scatter(1, token[:, None], self.log_span_end(log_probs)[:, None])
