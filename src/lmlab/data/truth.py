"""True distribution of a generated language: exact entropy and log-probabilities."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Truth(Protocol):
    """The true distribution over texts, the reference for a model's regret."""

    @property
    def entropy(self) -> float:
        """Exact entropy of the distribution over whole texts, in nats per text."""
        ...

    def log_prob(self, text: str) -> float:
        """True log-probability of the whole text with its end, in nats; -inf if impossible."""
        ...


@runtime_checkable
class TruthWithLength(Truth, Protocol):
    """A true distribution with a known expected length, so that entropy per token is defined."""

    @property
    def expected_tokens(self) -> float:
        """Expected number of predicted tokens per text (words or characters, and the end)."""
        ...
