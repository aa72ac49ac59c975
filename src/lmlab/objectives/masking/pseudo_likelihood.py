"""Copies of texts with places hidden, and questions about them: many at once, to a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary

MAX_TOKENS_AT_ONCE = 8192
"""Tokens of masked copies that are read together while texts are scored."""

CPU_TOKENS_AT_ONCE = 1024
"""So many at most where a CPU reads them: what is computed of them then stays in its cache."""

ScoreMasked = Callable[[Batch, Tensor, Tensor], Tensor]
"""Copies (N, T), the places hidden in them (N, T) and those asked (N, T) to a number for each true
entry of the last, in reading order."""


def scored_positions(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B, T) bool: all tokens but place 0 and the end symbol, since the length is given."""
    places = batch.targets_mask()
    return places if vocabulary.end is None else places & (batch.tokens != vocabulary.end)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedCopies:
    """N copies to be made of the rows of a batch, each with a question; made when it is read."""

    rows: Tensor
    """(N,) which row each is a copy of."""
    places: Tensor | None
    """(N,) the one place asked in each copy; None where all those of `asked` are."""
    targets: Tensor
    """(B, T) bool: the places of the batch that are asked."""
    masked: Tensor | None = None
    """(B, T) bool: what is hidden in a copy whatever its place; None for none but its place."""
    words: Tensor | None = None
    """(B, T) the number of the word at each place, where the rest of a word is hidden as well."""

    def masks_of(self, here: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """(n, length) the places that are hidden and those asked in the copies `here` (n,)."""
        rows = self.rows[here]
        if self.places is None:
            asked = self.targets[rows, :length]
            nothing = torch.zeros_like(asked)
            return nothing if self.masked is None else self.masked[rows, :length], asked
        place = torch.arange(length, device=rows.device)
        asked = place == self.places[here][:, None]
        if self.words is None:
            return asked, asked
        words = self.words[rows, :length]
        own = words.gather(1, self.places[here][:, None])
        return (words == own) & (place >= self.places[here][:, None]), asked


def mask_each(asked: Tensor, words: Tensor | None = None) -> MaskedCopies:
    """A copy for each place of `asked` (B, T), hidden in it; with the rest of its word if told."""
    rows, places = asked.nonzero(as_tuple=True)
    return MaskedCopies(rows=rows, places=places, targets=asked, words=words)


def mask_together(asked: Tensor, hidden: Tensor | None) -> MaskedCopies:
    """A copy for each row with `hidden` (B, T) hidden, or nothing, and all of `asked` asked."""
    rows = asked.any(1).nonzero()[:, 0]
    return MaskedCopies(rows=rows, places=None, targets=asked, masked=hidden)


def score_masked_copies(
    ask: ScoreMasked,
    batch: Batch,
    copies: MaskedCopies,
    *,
    tokens_at_once: int = MAX_TOKENS_AT_ONCE,
) -> Tensor:
    """(B, T) the answer at each place that is asked, 0 elsewhere.

    Copies of many rows are read together, those of like length, cut to the longest of them, so
    that memory is bounded by `tokens_at_once` (or one copy) whatever the texts are.
    """
    found, indices = [], []
    for here, length in _groups(batch.lengths[copies.rows], tokens_at_once):
        rows = copies.rows[here]
        hidden, asked = copies.masks_of(here, length)
        found.append(ask(_shortened(batch.select(rows), length), hidden, asked))
        which, places = asked.nonzero(as_tuple=True)
        indices.append((rows[which], places))
    if not found:
        return torch.zeros(batch.tokens.shape, device=batch.tokens.device)
    values = torch.cat(found)
    index = tuple(torch.cat(each) for each in zip(*indices, strict=True))
    return values.new_zeros(batch.tokens.shape).index_put(index, values)


def _groups(lengths: Tensor, tokens_at_once: int) -> Iterator[tuple[Tensor, int]]:
    """Indices of copies in groups of like length, longest first, and the length of the longest."""
    if lengths.device.type == "cpu":
        tokens_at_once = min(tokens_at_once, CPU_TOKENS_AT_ONCE)
    order = lengths.argsort(descending=True, stable=True)
    by_length: list[int] = lengths[order].tolist()
    first = 0
    while first < len(by_length):
        longest = by_length[first]
        last = first + max(1, tokens_at_once // max(longest, 1))
        # Rows of one length need no mask and no padding, unless too few of them are left.
        alike = first + sum(1 for length in by_length[first:last] if length == longest)
        if (alike - first) * longest * 2 >= tokens_at_once:
            last = alike
        yield order[first:last], longest
        first = last


def _shortened(batch: Batch, length: int) -> Batch:
    """The same without the places after `length`, where all rows have padding."""
    entities = None if batch.entities is None else batch.entities[:, :length]
    return replace(batch, tokens=batch.tokens[:, :length], entities=entities)
