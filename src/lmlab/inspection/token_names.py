"""Names of token ids in figures: tokens, special tokens and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lmlab.core.vocabulary import Vocabulary


@runtime_checkable
class NamesSpecialTokens(Protocol):
    """An objective with symbols of its own, beyond the tokeniser's, that says how to call them."""

    symbols: Mapping[int, str]


@runtime_checkable
class NamesOutcomes(Protocol):
    """An emission whose outcomes are no tokens, and that says what they are."""

    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TokenNames:
    """How ids are written."""

    token: Callable[[int], str]
    """The text of an id of the tokeniser."""
    vocabulary: Vocabulary
    """The tokeniser's; what lies beyond are symbols of the system."""
    symbols: Mapping[int, str]
    """Names of such symbols, where the objective tells them; the others are numbered."""
    outcomes: tuple[str, ...] = ()
    """What targets are called where they are no tokens."""

    def target(self, id: int) -> str:
        """What is predicted."""
        return self.outcomes[id] if self.outcomes else self.name(id)

    def name(self, id: int) -> str:
        """The text of any id."""
        if id in self.symbols:
            return self.symbols[id]
        beyond = id - self.vocabulary.size
        return self.token(id) if beyond < 0 else f"⟨{beyond + 1}⟩"
