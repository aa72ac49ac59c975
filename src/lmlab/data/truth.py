"""What a generated language knows of itself: the distribution its texts were drawn from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Truth(Protocol):
    """The true distribution over texts, against which a model's regret is measured."""

    @property
    def entropy(self) -> float:
        """Exact entropy of the distribution over whole texts, in nats per text."""
        ...

    def log_prob(self, text: str) -> float:
        """True log-probability of the whole text with its end, in nats; -inf if impossible."""
        ...


@runtime_checkable
class TruthWithLength(Truth, Protocol):
    """A truth that also knows how long its texts are, so that entropy can be told per token."""

    @property
    def expected_tokens(self) -> float:
        """Expected number of predicted tokens per text (words or characters, and the end)."""
        ...
