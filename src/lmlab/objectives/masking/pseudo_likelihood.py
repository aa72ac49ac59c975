"""Pseudo-log-likelihood scoring: masked copies of texts, batched to a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary

MAX_TOKENS_AT_ONCE = 8192
"""Tokens of masked copies per forward pass when texts are scored."""

CPU_TOKENS_AT_ONCE = 1024
"""The same on a CPU: so the activations stay in its cache."""

ScoreMasked = Callable[[Batch, Tensor, Tensor], Tensor]
"""From copies (N, T), their masked positions (N, T) and targets (N, T) to a number for each target,
in reading order."""


def scored_positions(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B, T) bool: all tokens but position 0 and the end token, since the length is given."""
    places = batch.targets_mask()
    return places if vocabulary.end is None else places & (batch.tokens != vocabulary.end)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedCopies:
    """N masked copies of the rows of a batch with their targets, built lazily."""

    rows: Tensor
    """(N,) the row each is a copy of."""
    places: Tensor | None
    """(N,) the single target position of each copy; None if all of `targets` are."""
    targets: Tensor
    """(B, T) bool: the target positions of the batch."""
    masked: Tensor | None = None
    """(B, T) bool: positions masked in every copy; None if only the target is."""
    words: Tensor | None = None
    """(B, T) word index of each position, if the rest of the target's word is masked too."""

    def masks_of(self, here: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """(n, length) masked positions and targets of the copies `here` (n,)."""
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
    """One copy per position of `asked` (B, T), masked in it, with the rest of its word if given."""
    rows, places = asked.nonzero(as_tuple=True)
    return MaskedCopies(rows=rows, places=places, targets=asked, words=words)


def mask_together(asked: Tensor, hidden: Tensor | None) -> MaskedCopies:
    """One copy per row with `hidden` (B, T) masked, or nothing, and all of `asked` as targets."""
    rows = asked.any(1).nonzero()[:, 0]
    return MaskedCopies(rows=rows, places=None, targets=asked, masked=hidden)


def score_masked_copies(
    ask: ScoreMasked,
    batch: Batch,
    copies: MaskedCopies,
    *,
    tokens_at_once: int = MAX_TOKENS_AT_ONCE,
) -> Tensor:
    """(B, T) the score at each target position, 0 elsewhere.

    Copies of many rows are batched by similar length and cut to the longest, so that memory is
    bounded by `tokens_at_once` (or one copy) whatever the texts are.
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
    """Indices of copies in groups of similar length, longest first, with each group's longest."""
    if lengths.device.type == "cpu":
        tokens_at_once = min(tokens_at_once, CPU_TOKENS_AT_ONCE)
    order = lengths.argsort(descending=True, stable=True)
    by_length: list[int] = lengths[order].tolist()
    first = 0
    while first < len(by_length):
        longest = by_length[first]
        last = first + max(1, tokens_at_once // max(longest, 1))
        # Rows of one length need no padding mask, unless too few of them are left.
        alike = first + sum(1 for length in by_length[first:last] if length == longest)
        if (alike - first) * longest * 2 >= tokens_at_once:
            last = alike
        yield order[first:last], longest
        first = last


def _shortened(batch: Batch, length: int) -> Batch:
    """The batch without the positions after `length`, where all rows have padding."""
    entities = None if batch.entities is None else batch.entities[:, :length]
    return replace(batch, tokens=batch.tokens[:, :length], entities=entities)
