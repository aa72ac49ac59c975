"""Finite language: finitely many texts with known probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np


class FiniteTruth:
    """True distribution over texts, given weighted derivations.

    Derivations of the same text add up: p(text) = Σ weight(derivation) over its derivations, so the
    probabilities and the entropy H = -Σ p log p are those of texts, not of derivations.
    """

    def __init__(
        self, ways: Iterable[tuple[str, float]], *, count_tokens: Callable[[str], int]
    ) -> None:
        totals: dict[str, float] = {}
        for text, weight in ways:
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
        place = int(np.searchsorted(self._cumulative, generator.random(), side="right"))
        # Rounding may leave the last cumulative sum slightly below one.
        return self._texts[min(place, len(self._texts) - 1)]
