"""Vocabulary size and the ids of special tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

PAD, UNKNOWN, START, END, MASK = "<pad>", "<unk>", "<s>", "</s>", "<mask>"
SPECIAL_TOKENS = (PAD, UNKNOWN, START, END, MASK)
NO_TOKEN = -1
"""Padding before the first token of a sequence."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The size V of a vocabulary and the ids of its special tokens.

    `pad`, `start` and `mask` are never predicted: an emission gives them probability zero, so that
    the probabilities of complete sequences sum to one. `unknown` and `end` are ordinary outcomes. A
    special token that a tokenizer does not have is None.
    """

    size: int
    pad: int = 0
    unknown: int | None = 1
    start: int | None = 2
    end: int | None = 3
    mask: int | None = 4
    first: int | None = None
    """The context before the first token, if it is not `start`: in contiguous text the end token of
    the previous line."""

    @property
    def bos(self) -> int:
        """The token that a sequence starts after."""
        for token in (self.first, self.start, self.end):
            if token is not None:
                return token
        raise AssertionError("a vocabulary needs a start or an end token")

    @property
    def unpredictable(self) -> tuple[int, ...]:
        """Ids with probability zero in every next-token distribution."""
        excluded = {i for i in (self.pad, self.start, self.mask) if i is not None}
        # If one token is both (GPT-2's end of text), the end can be predicted.
        return tuple(sorted(excluded - {self.end}))

    def extended(self, count: int) -> Vocabulary:
        """The same with `count` more ids at its end, for a system's own sentinels."""
        return replace(self, size=self.size + count)
