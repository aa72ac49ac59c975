"""Names of token ids in figures: tokens, special tokens and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lmlab.core.vocabulary import Vocabulary


@runtime_checkable
class NamesSpecialTokens(Protocol):
    """An objective that names its own special tokens beyond the tokeniser's."""

    symbols: Mapping[int, str]


@runtime_checkable
class NamesOutcomes(Protocol):
    """An emission that names its outcomes, which are not tokens."""

    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TokenNames:
    """Names of token ids."""

    token: Callable[[int], str]
    """The text of a tokeniser id."""
    vocabulary: Vocabulary
    """The tokeniser's; ids beyond it are special tokens of the system."""
    symbols: Mapping[int, str]
    """Names of those special tokens, if the objective has them; others are numbered."""
    outcomes: tuple[str, ...] = ()
    """Names of targets that are not tokens."""

    def target(self, id: int) -> str:
        """Name of a target."""
        return self.outcomes[id] if self.outcomes else self.name(id)

    def name(self, id: int) -> str:
        """Name of any id."""
        if id in self.symbols:
            return self.symbols[id]
        beyond = id - self.vocabulary.size
        return self.token(id) if beyond < 0 else f"⟨{beyond + 1}⟩"
