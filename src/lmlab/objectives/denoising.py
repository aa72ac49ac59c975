"""Denoising: the encoder reads a damaged text, the decoder writes the whole one (BART).

A noise says what of a text is still shown, as places of the text in the order in which they are
shown, and -1 where a mask symbol stands. So noises can follow on one another, and what was shown
of a text can be told from what was hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lmlab.core.errors import unknown_name
from lmlab.core.protocols import TokenizerProtocol
from lmlab.objectives.denoising_base import (
    CorruptedSource,
    DenoisingObjective,
    DenoisingSpecialTokens,
)
from lmlab.objectives.sentence_splitting import SentenceSplitter

MASKED_POSITION = -1
"""A place of a source where a mask symbol stands."""


class NoisingFunction(Protocol):
    """Damage to one text."""

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        """(S,) the places of the text (T,) that are shown, in their new order; HIDDEN at masks."""
        ...


@dataclass(frozen=True)
class TokenMasking:
    """Each token becomes a mask symbol with probability `rate`, by itself."""

    rate: float = 0.3

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        chosen = random.random(len(tokens)) < self.rate
        return np.where(chosen, MASKED_POSITION, np.arange(len(tokens)))


@dataclass(frozen=True)
class TokenDeletion:
    """Each token vanishes with probability `rate`; where something is missing is not told."""

    rate: float = 0.3

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        kept: np.ndarray = (random.random(len(tokens)) >= self.rate).nonzero()[0]
        return kept


@dataclass(frozen=True, kw_only=True)
class TextInfilling:
    """Spans of Poisson(`mean`) tokens, each shown as one mask symbol, until `rate` are hidden.

    ⌈rate · T⌉ tokens are hidden, so that the last span drawn may be cut short; a span of no token
    puts a mask symbol where nothing is missing. All ways to lay out the spans among the tokens that
    stay are equally likely. A source grows by its empty spans: those that would make it longer than
    `longest` are left out.
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
        """Lengths of the spans of a text, in the order in which they stand."""
        left, spans = ceil_share(self.rate, time), []
        hidden = left
        while left > 0:
            spans.append(min(int(random.poisson(self.mean)), left))
            left -= spans[-1]
        while self.max_length is not None and time - hidden + len(spans) > self.max_length:
            if 0 not in spans:
                break
            spans.remove(0)
        # The span that was cut short was drawn last, but may stand anywhere.
        return random.permutation(spans).tolist() if spans else []


@dataclass(frozen=True)
class SentencePermutation:
    """The sentences of a text in a random order, every order as likely as any other."""

    sentences: SentenceSplitter = field(default_factory=SentenceSplitter)

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        parts = self.sentences.split(tokens)
        return concatenate_arrays([parts[number] for number in random.permutation(len(parts))])


@dataclass(frozen=True)
class DocumentRotation:
    """The text turned so that it begins with a token of it, each as likely as any other."""

    def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
        places = np.arange(len(tokens))
        return np.roll(places, -int(random.integers(len(tokens)))) if len(tokens) else places


NOISES = ("masking", "deletion", "infilling", "permutation", "rotation")


def make_noise(
    name: str, *, rate: float, mean: float, longest: int | None, sentences: SentenceSplitter
) -> NoisingFunction:
    """One of Lewis et al.'s five noises, by its name."""
    match name:
        case "masking":
            return TokenMasking(rate)
        case "deletion":
            return TokenDeletion(rate)
        case "infilling":
            return TextInfilling(rate=rate, mean=mean, max_length=longest)
        case "permutation":
            return SentencePermutation(sentences)
        case "rotation":
            return DocumentRotation()
    raise unknown_name("noise", name, NOISES)


class BARTDenoising(DenoisingObjective):
    """-log p(s | noises(s)): the encoder reads what the noises left, one after another, of a text.

    Lewis et al. 2020: sentence permutation, then infilling. Every token of the clean text is
    predicted, those too that the source shows.
    """

    def __init__(
        self,
        spelling: DenoisingSpecialTokens,
        noises: Sequence[NoisingFunction],
        *,
        sentences: SentenceSplitter | None = None,
        whole: float = 0.0,
    ) -> None:
        super().__init__(spelling, whole=whole)
        self.noises = tuple(noises)
        self.sentences = sentences or SentenceSplitter()

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        self.sentences.setup_tokenizer(pieces, self.vocabulary.size)

    def corrupt(
        self, tokens: np.ndarray, random: np.random.Generator
    ) -> tuple[CorruptedSource, np.ndarray]:
        """What the noises leave of a text; all of it is written."""
        shown = CorruptedSource(tokens, np.arange(len(tokens)))
        for noise in self.noises:
            places = noise(shown.tokens, random=random)
            shown = CorruptedSource(
                take_positions(shown.tokens, places, self.special_tokens.mask),
                take_positions(shown.positions, places, MASKED_POSITION),
            )
        return shown, np.arange(len(tokens))


def take_positions(values: np.ndarray, places: np.ndarray, hidden: int) -> np.ndarray:
    """(S,) the values (T,) at the places, and `hidden` where a mask symbol stands."""
    found = np.full(len(places), hidden, dtype=np.int64)
    shown = places != MASKED_POSITION
    found[shown] = values[places[shown]]
    return found


def concatenate_arrays(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array of several, which may be none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def ceil_share(rate: float, count: int) -> int:
    """⌈rate · count⌉, rounding errors of the product aside."""
    return math.ceil(rate * count - 1e-9)
