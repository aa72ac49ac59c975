"""A language of finitely many texts, each with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np


class FiniteTruth:
    """The distribution over texts that weighted ways of making them define.

    Ways that give the same text add up: p(text) = Σ weight(way) over the ways that make it, so the
    probabilities and the entropy H = -Σ p log p are those of texts, not of their making.
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
        """The true log-probability of `text` in nats, -inf if the language does not have it."""
        probability = self.probabilities.get(text)
        return -math.inf if probability is None else math.log(probability)

    def sample(self, generator: np.random.Generator) -> str:
        """Draw one text."""
        place = int(np.searchsorted(self._cumulative, generator.random(), side="right"))
        # Rounding may leave the last cumulative sum a hair under one.
        return self._texts[min(place, len(self._texts) - 1)]
