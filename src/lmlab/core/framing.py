"""Texts of any length between their start and end symbols."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary


def inner_lengths(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B,) tokens of each text without what stands at place 0, and without an end symbol."""
    last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None])[:, 0]
    ended = (last == vocabulary.end) & (batch.lengths > 1)
    return (batch.lengths - 1 - ended.long()).clamp(min=0)


def text_numbers(tokens: Tensor, vocabulary: Vocabulary) -> Tensor | None:
    """(B, T) 0 up to a first end symbol and 1 behind it: which of two texts each place is of.

    None where texts have no end symbol.
    """
    if vocabulary.end is None:
        return None
    ended = (tokens == vocabulary.end).long()
    return (ended.cumsum(1) - ended).clamp(max=1)


def with_symbols(
    tokens: Tensor, lengths: Tensor, vocabulary: Vocabulary, *, rows: Tensor | None = None
) -> Batch:
    """Texts (M, L) of `lengths` (M,) between a start and, where there is one, an end symbol."""
    ends = int(vocabulary.end is not None)
    padded = F.pad(tokens, (1, ends), value=vocabulary.pad)
    padded[:, 0] = vocabulary.opening
    if vocabulary.end is not None:
        padded.scatter_(1, (lengths + 1)[:, None], vocabulary.end)
    if rows is None:
        rows = torch.arange(len(tokens), device=tokens.device)
    return Batch(tokens=padded, lengths=lengths + 1 + ends, rows=rows)
