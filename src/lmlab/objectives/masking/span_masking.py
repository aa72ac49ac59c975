"""Span masking (SpanBERT): contiguous spans of whole words (Joshi et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.whole_word_masking import TokenUnits


def geometric_lengths(p: float = 0.2, longest: int = 10) -> tuple[float, ...]:
    """P(length = 1 … longest) ∝ (1 - p)^(length - 1): SpanBERT's, with a mean of 3.8."""
    return _normalised([(1 - p) ** (length - 1) for length in range(1, longest + 1)])


def harmonic_lengths(longest: int = 3) -> tuple[float, ...]:
    """P(length = 1 … longest) ∝ 1 / length: ALBERT's n-gram masking (Lan et al. 2020)."""
    return _normalised([1 / length for length in range(1, longest + 1)])


def _normalised(weights: Sequence[float]) -> tuple[float, ...]:
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


@dataclass(frozen=True, kw_only=True)
class SpanMasking:
    """Span masking: spans of whole words up to `rate`, with a visible word between any two.

    Lengths in words are sampled until they reach the budget, the last one cut to it; then the spans
    are placed, every arrangement equally likely. So no length is favoured because it fits better,
    as happens when overlapping spans are resampled. A fractional budget is rounded up or down at
    random, to at least one. The last position is never masked, so that every span has two
    neighbours.
    """

    units: TokenUnits
    rate: float = 0.15
    lengths: tuple[float, ...] = geometric_lengths()
    """Probabilities of 1, 2, 3 … words."""

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        last = torch.arange(allowed.shape[1], device=allowed.device) == batch.lengths[:, None] - 1
        allowed = allowed & ~last
        starts = self.units.starts(batch, allowed)
        word = (starts.cumsum(1) - 1).masked_fill(~allowed, 0)
        words = starts.sum(1).tolist()
        hidden = torch.zeros(len(batch), max([1, *words]), dtype=torch.bool)
        drawn = per_example_uniform(
            (len(batch), 3, hidden.shape[1] + 1), hidden.device, generator=generator
        )
        for row, (count, draws) in enumerate(zip(words, drawn.tolist(), strict=True)):
            for first, length in self.place_spans(count, draws):
                hidden[row, first : first + length] = True
        return hidden.to(allowed.device).gather(1, word) & allowed

    def place_spans(self, words: int, draws: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
        """First word and length of each span in a text of so many words.

        `draws` are three rows of at least `words` + 1 numbers in [0, 1).
        """
        for_lengths, for_places, for_order = draws
        lengths = self._drawn(words, for_lengths)
        # A span and the word after it are one block; the positions of the blocks among the other
        # words are a uniformly random subset.
        places = words + 1 - sum(lengths)
        chosen = sorted(_shuffled(for_places[:places])[: len(lengths)])
        found, before = [], 0
        # Shuffled, because the length sampled last is cut to the budget and may stand anywhere.
        for place, rank in zip(chosen, _shuffled(for_order[: len(lengths)]), strict=True):
            found.append((place + before, lengths[rank]))
            before += lengths[rank]
        return found

    def _drawn(self, words: int, draws: Sequence[float]) -> list[int]:
        """Span lengths that add up to the budget, or to what fits."""
        if words == 0:
            return []
        exact = self.rate * words
        share = max(1, math.floor(exact) + (draws[0] < exact - math.floor(exact)))
        found: list[int] = []
        for draw in draws[1 : words + 1]:
            room = min(share, words - len(found)) - sum(found)
            if room < 1:
                break
            found.append(min(self._length(draw), room))
        return found

    def _length(self, draw: float) -> int:
        """Sample a length by inverting the cumulative distribution at a number in [0, 1)."""
        so_far = 0.0
        for length, probability in enumerate(self.lengths, start=1):
            so_far += probability
            if draw < so_far:
                return length
        return len(self.lengths)


def _shuffled(draws: Sequence[float]) -> list[int]:
    """The permutation that sorts the random numbers."""
    return sorted(range(len(draws)), key=draws.__getitem__)
