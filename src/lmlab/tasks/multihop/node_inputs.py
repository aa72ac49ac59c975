"""Input of CogQA's System 1 for a node: question, clues and paragraph in one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.cogqa import SEPARATORS, require_end_token


@dataclass(frozen=True, kw_only=True)
class NodeInput:
    """`<s> question </s> clues </s> paragraph </s>`; clues and paragraph may be empty."""

    tokens: list[int]
    spans: list[tuple[int, int]]
    """Characters [low, high) of the paragraph of each token; (0, 0) elsewhere."""
    truncated: bool = False
    """Whether clues or paragraph were truncated."""

    def positions_of(self, low: int, high: int) -> tuple[int, int] | None:
        """First and last position of some characters of the paragraph; None if truncated."""
        inside = [p for p, (a, b) in enumerate(self.spans) if a < b and a < high and b > low]
        if not inside or self.spans[inside[-1]][1] < high:
            return None
        return inside[0], inside[-1]


class NodeEncoder:
    """Encodes question, clues and paragraph as at most `longest` tokens."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int) -> None:
        self.start, self.end = vocabulary.bos, require_end_token(vocabulary)
        self.longest = longest
        self._read = lru_cache(maxsize=65536)(tokenizer.encode_with_offsets)

    def __call__(self, question: str, clues: str, paragraph: str) -> NodeInput:
        """The question is never truncated; the paragraph is first, to no less than half of the
        rest, then the clues."""
        asked = self._read(question)[0]
        room = self.longest - 1 - SEPARATORS - len(asked)
        if room < 2:
            raise UserError(
                f"the question has {len(asked)} tokens, and this system takes at most "
                f"{self.longest} with clues and a paragraph; shorten it, or train with a "
                "greater length."
            )
        hints, (text, spans) = self._read(clues)[0], self._read(paragraph)
        kept = max(room - len(hints), room // 2)
        shown, told = text[:kept], hints[: room - min(kept, len(text))]
        tokens = [self.start, *asked, self.end, *told, self.end]
        before = [(0, 0)] * len(tokens)
        return NodeInput(
            tokens=[*tokens, *shown, self.end],
            spans=[*before, *spans[:kept], (0, 0)],
            truncated=len(shown) < len(text) or len(told) < len(hints),
        )
