"""Corpora sampled from a known (true) distribution, and finite distributions over texts."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import SPLITS, Corpus, Split, TruthWithLength


class FiniteTruth:
    """True distribution over texts, given weighted derivations.

    Derivations of the same text add up: p(text) = Σ weight(derivation) over its derivations, so the
    probabilities and the entropy H = -Σ p log p are those of texts, not of derivations.
    """

    def __init__(
        self, derivations: Iterable[tuple[str, float]], *, count_tokens: Callable[[str], int]
    ) -> None:
        totals: dict[str, float] = {}
        for text, weight in derivations:
            totals[text] = totals.get(text, 0.0) + weight
        mass = math.fsum(totals.values())
        assert abs(mass - 1.0) < 1e-9, f"the probabilities of a language sum to {mass}, not to one"
        self.probabilities: Mapping[str, float] = MappingProxyType(totals)
        self.entropy = -math.fsum(p * math.log(p) for p in totals.values())
        self.expected_tokens = 1 + math.fsum(p * count_tokens(t) for t, p in totals.items())
        self._texts = tuple(totals)
        self._cumulative = np.cumsum(tuple(totals.values()))

    def log_prob(self, text: str) -> float:
        """The true log-probability of `text` in nats, -inf outside the language."""
        probability = self.probabilities.get(text)
        return -math.inf if probability is None else math.log(probability)

    def sample(self, generator: np.random.Generator) -> str:
        """Sample one text."""
        index = int(np.searchsorted(self._cumulative, generator.random(), side="right"))
        # Rounding may leave the last cumulative sum slightly below one.
        return self._texts[min(index, len(self._texts) - 1)]


TRAIN_SENTENCES = 4_000
"""Default training size: models learn these languages from it within a minute."""
HELD_OUT_SENTENCES = 500
"""Size of the validation split, and of the test split."""


class SampledLanguage(TruthWithLength, Protocol):
    """A true distribution that can be sampled."""

    def sample(self, generator: np.random.Generator) -> str:
        """Sample one text."""


def sampled_corpus(
    name: str,
    truth: SampledLanguage,
    *,
    description: str,
    tokenizer: str,
    sentences: int,
    seed: int,
) -> Corpus:
    """Sample train, validation and test from the true distribution, with separate random streams.

    Samples are independent, so a likely text occurs in several splits; this makes the mean
    surprisal of a held-out split an unbiased estimate of the cross-entropy, whose minimum is the
    entropy.
    """
    if sentences < 1 or seed < 0:
        raise UserError(
            f"{name} needs at least 1 sentence and a seed of 0 or more, got {sentences} and {seed}."
        )
    sizes = {"train": sentences, "validation": HELD_OUT_SENTENCES, "test": HELD_OUT_SENTENCES}
    splits = {
        split: _sampled_split(name, split, truth, size=sizes[split], seed=seed) for split in SPLITS
    }
    return Corpus(
        name=name,
        splits=splits,
        tokenizer=tokenizer,
        # The vocabulary covers all splits: unknown words would distort the regret.
        vocabulary_from=tuple(splits),
        truth=truth,
        description=description,
    )


def _sampled_split(name: str, split: str, truth: SampledLanguage, *, size: int, seed: int) -> Split:
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(f"{name}/{split}".encode())]))
    texts = [truth.sample(generator) for _ in range(size)]
    # Identity by content, so that no cache outlives a change of the language.
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
    return Split.from_list(texts, identity=f"{name}:{digest}", name=split)
