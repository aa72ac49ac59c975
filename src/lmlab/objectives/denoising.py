"""Denoising seq2seq (BART): five noising functions; the decoder generates the original text.

A noising function returns the positions of the text that remain, in their new order, and -1 for a
mask token. So noises compose, and it stays known which tokens the source shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lmlab.core.errors import unknown_name
from lmlab.objectives.denoising_base import (
    CorruptedSource,
    CorruptedTextObjective,
    DenoisingSpecialTokens,
    SentenceSplitter,
)

MASKED_POSITION = -1
"""Marks a mask token among the positions of a source."""


class NoisingFunction(Protocol):
    """A corruption of one text."""

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        """(S,) positions of the text (T,) in their new order; MASKED_POSITION at masks."""
        ...


@dataclass(frozen=True)
class TokenMasking:
    """Token masking: each token becomes a mask token independently with probability `rate`."""

    rate: float = 0.3

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        chosen = random.random(len(tokens)) < self.rate
        return np.where(chosen, MASKED_POSITION, np.arange(len(tokens)))


@dataclass(frozen=True)
class TokenDeletion:
    """Token deletion: each token is dropped with probability `rate`, leaving no mark."""

    rate: float = 0.3

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        remaining: np.ndarray = (random.random(len(tokens)) >= self.rate).nonzero()[0]
        return remaining


@dataclass(frozen=True, kw_only=True)
class TextInfilling:
    """Text infilling: spans of Poisson(`mean`) tokens, one mask token each, until `rate` is masked.

    ⌈rate · T⌉ tokens are masked, so the span sampled last may be cut short; an empty span inserts a
    mask token where nothing is missing. All layouts of the spans among the remaining tokens are
    equally likely. Empty spans lengthen the source: those beyond `max_length` are dropped.
    """

    rate: float = 0.3
    mean: float = 3.0
    max_length: int | None = None

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        spans = self.sample_span_lengths(len(tokens), random)
        items = len(tokens) - sum(spans) + len(spans)
        masked = np.zeros(items, dtype=bool)
        masked[random.choice(items, len(spans), replace=False)] = True
        widths = np.ones(items, dtype=np.int64)
        widths[masked] = spans
        starts = np.cumsum(widths) - widths
        return np.where(masked, MASKED_POSITION, starts)

    def sample_span_lengths(self, time: int, random: np.random.Generator) -> list[int]:
        """Span lengths of a text, from left to right."""
        remaining, spans = ceil_share(self.rate, time), []
        masked_count = remaining
        while remaining > 0:
            spans.append(min(int(random.poisson(self.mean)), remaining))
            remaining -= spans[-1]
        while self.max_length is not None and time - masked_count + len(spans) > self.max_length:
            if 0 not in spans:
                break
            spans.remove(0)
        # The span cut short was sampled last, but may stand anywhere.
        return random.permutation(spans).tolist() if spans else []


@dataclass(frozen=True)
class SentencePermutation:
    """Sentence permutation: the sentences of a text in uniformly random order."""

    sentences: SentenceSplitter = field(default_factory=SentenceSplitter)

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        parts = self.sentences.split(tokens)
        return concatenate_arrays([parts[number] for number in random.permutation(len(parts))])


@dataclass(frozen=True)
class DocumentRotation:
    """Document rotation: the text rotated to start at a uniformly random token."""

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        positions = np.arange(len(tokens))
        return np.roll(positions, -int(random.integers(len(tokens)))) if len(tokens) else positions


NOISES = ("masking", "deletion", "infilling", "permutation", "rotation")


def make_noise(
    name: str, *, rate: float, mean: float, max_length: int | None, sentences: SentenceSplitter
) -> NoisingFunction:
    """One of BART's five noising functions (Lewis et al. 2020), by name."""
    match name:
        case "masking":
            return TokenMasking(rate)
        case "deletion":
            return TokenDeletion(rate)
        case "infilling":
            return TextInfilling(rate=rate, mean=mean, max_length=max_length)
        case "permutation":
            return SentencePermutation(sentences)
        case "rotation":
            return DocumentRotation()
    raise unknown_name("noise", name, NOISES)


class BARTDenoising(CorruptedTextObjective):
    """BART: -log p(s | noises(s)); the noises are applied to the source one after another.

    Lewis et al. 2020: sentence permutation, then text infilling. Every token of the original text
    is predicted, including those the source shows.
    """

    def __init__(
        self,
        special_tokens: DenoisingSpecialTokens,
        noises: Sequence[NoisingFunction],
        *,
        sentences: SentenceSplitter | None = None,
        full_mask_rate: float = 0.0,
    ) -> None:
        super().__init__(special_tokens, full_mask_rate=full_mask_rate)
        self.noises = tuple(noises)
        self.sentences: SentenceSplitter = sentences or SentenceSplitter()

    def corrupt(
        self, tokens: np.ndarray, random: np.random.Generator
    ) -> tuple[CorruptedSource, np.ndarray]:
        """The corrupted source of a text; all positions are targets."""
        source = CorruptedSource(tokens, np.arange(len(tokens)))
        for noise in self.noises:
            positions = noise(source.tokens, random=random)
            source = CorruptedSource(
                take_positions(source.tokens, positions, self.special_tokens.mask),
                take_positions(source.positions, positions, MASKED_POSITION),
            )
        return source, np.arange(len(tokens))


def take_positions(values: np.ndarray, positions: np.ndarray, mask: int) -> np.ndarray:
    """(S,) values (T,) at the positions, and `mask` at mask tokens."""
    taken = np.full(len(positions), mask, dtype=np.int64)
    visible = positions != MASKED_POSITION
    taken[visible] = values[positions[visible]]
    return taken


def concatenate_arrays(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays, possibly none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def ceil_share(rate: float, count: int) -> int:
    """⌈rate · count⌉, robust to rounding errors of the product."""
    return math.ceil(rate * count - 1e-9)
