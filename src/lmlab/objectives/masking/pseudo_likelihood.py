"""Pseudo-log-likelihood scoring of masked LMs: masked copies of texts, in token-budget batches."""

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
    positions = batch.targets_mask()
    return positions if vocabulary.end is None else positions & (batch.tokens != vocabulary.end)


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

    def masks_of(self, copies: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """(n, length) masked positions and targets of the `copies` (n,)."""
        rows = self.rows[copies]
        if self.places is None:
            targets = self.targets[rows, :length]
            unmasked = torch.zeros_like(targets)
            return unmasked if self.masked is None else self.masked[rows, :length], targets
        positions = torch.arange(length, device=rows.device)
        targets = positions == self.places[copies][:, None]
        if self.words is None:
            return targets, targets
        words = self.words[rows, :length]
        target_words = words.gather(1, self.places[copies][:, None])
        return (words == target_words) & (positions >= self.places[copies][:, None]), targets


def mask_each(targets: Tensor, words: Tensor | None = None) -> MaskedCopies:
    """One copy per position of `targets` (B, T), masked with the rest of its word if given."""
    rows, positions = targets.nonzero(as_tuple=True)
    return MaskedCopies(rows=rows, places=positions, targets=targets, words=words)


def mask_together(targets: Tensor, masked: Tensor | None) -> MaskedCopies:
    """One copy per row with `masked` (B, T) or nothing masked, and all of `targets`."""
    rows = targets.any(1).nonzero()[:, 0]
    return MaskedCopies(rows=rows, places=None, targets=targets, masked=masked)


def score_masked_copies(
    score: ScoreMasked,
    batch: Batch,
    copies: MaskedCopies,
    *,
    tokens_at_once: int = MAX_TOKENS_AT_ONCE,
) -> Tensor:
    """(B, T) the score at each target position, 0 elsewhere.

    Copies of many rows are batched by similar length and cut to the longest, so that memory is
    bounded by `tokens_at_once` (or one copy) whatever the texts are.
    """
    scores, indices = [], []
    for group, length in _groups(batch.lengths[copies.rows], tokens_at_once):
        rows = copies.rows[group]
        masked, targets = copies.masks_of(group, length)
        scores.append(score(_shortened(batch.select(rows), length), masked, targets))
        copy_index, positions = targets.nonzero(as_tuple=True)
        indices.append((rows[copy_index], positions))
    if not scores:
        return torch.zeros(batch.tokens.shape, device=batch.tokens.device)
    values = torch.cat(scores)
    index = tuple(torch.cat(parts) for parts in zip(*indices, strict=True))
    return values.new_zeros(batch.tokens.shape).index_put(index, values)


def _groups(lengths: Tensor, tokens_at_once: int) -> Iterator[tuple[Tensor, int]]:
    """Indices of copies in groups of similar length, longest first, with each group's longest."""
    if lengths.device.type == "cpu":
        tokens_at_once = min(tokens_at_once, CPU_TOKENS_AT_ONCE)
    order = lengths.argsort(descending=True, stable=True)
    by_length: list[int] = lengths[order].tolist()
    first = 0
    while first < len(by_length):
        max_length = by_length[first]
        last = first + max(1, tokens_at_once // max(max_length, 1))
        # Rows of one length need no padding mask, unless too few of them are left.
        alike = first + sum(1 for length in by_length[first:last] if length == max_length)
        if (alike - first) * max_length * 2 >= tokens_at_once:
            last = alike
        yield order[first:last], max_length
        first = last


def _shortened(batch: Batch, length: int) -> Batch:
    """The batch without the positions after `length`, where all rows have padding."""
    entities = None if batch.entities is None else batch.entities[:, :length]
    return replace(batch, tokens=batch.tokens[:, :length], entities=entities)
