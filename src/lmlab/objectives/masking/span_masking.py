"""Span masking of whole words: geometric lengths (SpanBERT) or p(n) ∝ 1/n (ALBERT)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.whole_word_masking import TokenUnits


def geometric_lengths(p: float = 0.2, max_length: int = 10) -> tuple[float, ...]:
    """P(length = 1 … max_length) ∝ (1 - p)^(length - 1): SpanBERT's, with a mean of 3.8."""
    return _normalised([(1 - p) ** (length - 1) for length in range(1, max_length + 1)])


def harmonic_lengths(max_length: int = 3) -> tuple[float, ...]:
    """P(length = 1 … max_length) ∝ 1 / length: ALBERT's n-gram masking (Lan et al. 2020)."""
    return _normalised([1 / length for length in range(1, max_length + 1)])


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
        masked = torch.zeros(len(batch), max([1, *words]), dtype=torch.bool)
        uniforms = per_example_uniform(
            (len(batch), 3, masked.shape[1] + 1), masked.device, generator=generator
        )
        for row, (count, row_uniforms) in enumerate(zip(words, uniforms.tolist(), strict=True)):
            for first, length in self.place_spans(count, row_uniforms):
                masked[row, first : first + length] = True
        return masked.to(allowed.device).gather(1, word) & allowed

    def place_spans(self, words: int, uniforms: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
        """First word and length of each span in a text of so many words.

        `uniforms` are three rows of at least `words` + 1 numbers in [0, 1).
        """
        for_lengths, for_slots, for_order = uniforms
        lengths = self._sample_lengths(words, for_lengths)
        # A span and the word after it are one block; the positions of the blocks among the other
        # words are a uniformly random subset.
        slots = words + 1 - sum(lengths)
        chosen = sorted(_argsort(for_slots[:slots])[: len(lengths)])
        spans, offset = [], 0
        # Shuffled, because the length sampled last is cut to the budget and may stand anywhere.
        for slot, rank in zip(chosen, _argsort(for_order[: len(lengths)]), strict=True):
            spans.append((slot + offset, lengths[rank]))
            offset += lengths[rank]
        return spans

    def _sample_lengths(self, words: int, uniforms: Sequence[float]) -> list[int]:
        """Span lengths that add up to the budget, or to what fits."""
        if words == 0:
            return []
        exact = self.rate * words
        share = max(1, math.floor(exact) + (uniforms[0] < exact - math.floor(exact)))
        lengths: list[int] = []
        for uniform in uniforms[1 : words + 1]:
            remaining = min(share, words - len(lengths)) - sum(lengths)
            if remaining < 1:
                break
            lengths.append(min(self._invert_length_cdf(uniform), remaining))
        return lengths

    def _invert_length_cdf(self, uniform: float) -> int:
        """Sample a length by inverting the cumulative distribution at a number in [0, 1)."""
        so_far = 0.0
        for length, probability in enumerate(self.lengths, start=1):
            so_far += probability
            if uniform < so_far:
                return length
        return len(self.lengths)


def _argsort(keys: Sequence[float]) -> list[int]:
    """The permutation that sorts the random numbers."""
    return sorted(range(len(keys)), key=keys.__getitem__)
