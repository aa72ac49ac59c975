"""What a search may not write, and what it must."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.core.errors import UserError

Phrase = tuple[int, ...]
"""The tokens of a word or of several, in their order."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Phrases that no sequence holds, and phrases that every sequence holds.

    A search divides its places among hypotheses by how much of what is required they hold (Post
    and Vilar 2018), so that those which pay for it early are not pushed out by those that do not.
    """

    banned: tuple[Phrase, ...] = ()
    required: tuple[Phrase, ...] = ()

    def __post_init__(self) -> None:
        if any(not phrase for phrase in (*self.banned, *self.required)):
            raise UserError("a word that is banned or required needs at least one token.")
        for phrase in self.required:
            for other in self.banned:
                if contains(phrase, other):
                    raise UserError("what is required holds what is banned; drop one of them.")

    def __bool__(self) -> bool:
        return bool(self.banned or self.required)

    def forbidden(self, written: Phrase) -> set[int]:
        """Tokens that would complete a banned phrase."""
        return {
            phrase[-1]
            for phrase in self.banned
            if len(phrase) == 1 or written[1 - len(phrase) :] == phrase[:-1]
        }

    def wanted(self, written: Phrase) -> set[int]:
        """Tokens that go on with a required phrase which is not there yet, or begin it."""
        found = set()
        for phrase in self.required:
            if not contains(written, phrase):
                found.add(phrase[0])
                found.add(phrase[begun(written, phrase)])
        return found

    def held(self, written: Phrase) -> int:
        """How many required tokens are there: of whole phrases, and of one begun at the end."""
        return sum(
            len(phrase) if contains(written, phrase) else begun(written, phrase)
            for phrase in self.required
        )

    def met(self, written: Phrase) -> bool:
        """Whether all that is required is there."""
        return all(contains(written, phrase) for phrase in self.required)


def contains(written: Sequence[int], phrase: Phrase) -> bool:
    """Whether a phrase stands in what was written, its tokens one after another."""
    size = len(phrase)
    return any(
        tuple(written[place : place + size]) == phrase for place in range(len(written) - size + 1)
    )


def begun(written: Phrase, phrase: Phrase) -> int:
    """How many tokens of a phrase stand at the end of what was written; fewer than all."""
    for size in range(min(len(phrase) - 1, len(written)), 0, -1):
        if written[-size:] == phrase[:size]:
            return size
    return 0


def shared_out(
    possible: list[tuple[int, int, float, int]], width: int
) -> list[tuple[int, int, float]]:
    """The `width` ways on that are kept, of (row, token, log-probability, required tokens held).

    Those that hold as much stand in one bank, best first; banks take turns, the fullest first.
    """
    banks: dict[int, list[tuple[int, int, float]]] = {}
    for row, token, log_prob, held in sorted(possible, key=lambda way: -way[2]):
        if log_prob > -math.inf:
            banks.setdefault(held, []).append((row, token, log_prob))
    waiting = [banks[held] for held in sorted(banks, reverse=True)]
    chosen: list[tuple[int, int, float]] = []
    turn = 0
    while len(chosen) < width and any(turn < len(bank) for bank in waiting):
        chosen += [bank[turn] for bank in waiting if turn < len(bank)]
        turn += 1
    return chosen[:width]
