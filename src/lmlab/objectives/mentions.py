"""Mentions of names and phrases in a text, found by a lexicon."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.protocols import Pieces
from lmlab.objectives.whole_units import Words


class Mentions:
    """Names of a lexicon where they stand in a text, and words everywhere else (Sun et al. 2019).

    Names are compared as tokens, from left to right, the longest first; they begin where a word
    begins and end where one ends. A name with a token that the tokeniser does not know is never
    found. The lexicon is read when the tokeniser is known, before which there are no names: a model
    that only scores has no use for it. Cost: O(T) looks into a table for each length that names
    with the same first token have.
    """

    def __init__(self, lexicon: Callable[[], Sequence[str]], words: Words) -> None:
        self.lexicon = lexicon
        self.words = words
        self.names: Sequence[str] = ()
        self._numbers: dict[tuple[int, ...], int] = {}
        self._lengths: dict[int, tuple[int, ...]] = {}
        """By its first token, how long a name can be, the longest first."""

    def meet(self, pieces: Pieces) -> None:
        """Learn how the tokeniser writes the names, and where words begin."""
        self.words.meet(pieces)
        self.names = self.lexicon()
        unknown = self.words.vocabulary.unknown
        self._numbers, lengths = {}, dict[int, set[int]]()
        for number, name in enumerate(self.names):
            tokens = tuple(pieces.encode(name))
            if tokens and unknown not in tokens:
                self._numbers.setdefault(tokens, number)
                lengths.setdefault(tokens[0], set()).add(len(tokens))
        self._lengths = {first: tuple(sorted(all, reverse=True)) for first, all in lengths.items()}

    def covering(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) the number of the name that covers each place, -1 where none."""
        return self._found(batch, allowed, self.words.starts(batch, allowed))[0]

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) bool: where a mention begins, and where a word does that is in none."""
        starts = self.words.starts(batch, allowed)
        covering, first = self._found(batch, allowed, starts)
        return torch.where(covering >= 0, first, starts)

    def _found(self, batch: Batch, allowed: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) which name covers each place, and whether it begins there."""
        covering = torch.full(allowed.shape, -1)
        first = torch.zeros(allowed.shape, dtype=torch.bool)
        if self._numbers:
            # A mention ends where the next word begins, or where no text is.
            stops = starts | ~allowed
            rows = zip(batch.tokens.tolist(), starts.tolist(), stops.tolist(), strict=True)
            for row, (tokens, begin, stop) in enumerate(rows):
                for place, length, number in self._match(tokens, begin, [*stop, True]):
                    covering[row, place : place + length] = number
                    first[row, place] = True
        return covering.to(allowed.device), first.to(allowed.device)

    def _match(
        self, tokens: list[int], begin: list[bool], stop: list[bool]
    ) -> list[tuple[int, int, int]]:
        """Place, length and number of each mention in a row."""
        found, free = [], 0
        for place, token in enumerate(tokens):
            if not begin[place] or place < free:
                continue
            for length in self._lengths.get(token, ()):
                end = place + length
                number = self._numbers.get(tuple(tokens[place:end]))
                if number is not None and end < len(stop) and stop[end]:
                    found.append((place, length, number))
                    free = end
                    break
        return found
