"""Tokens of a text piece by piece, so that a line of any length is tokenised in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from lmlab.core.vocabulary import UNKNOWN
from lmlab.data.tokenizers import CJK_CHARACTER

TOKEN_CHUNK_CHARACTERS = 65_536
MAX_WORD_CHARACTERS = 262_144
"""Where a text has no place to divide for so long, subword tokenisers get it divided anyway."""

# Before a single space between two words: whether a tokeniser drops the space or joins it to the
# word after it, both sides come out as they would together.
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


class TokenChunk(NamedTuple):
    """Ids, and for each the characters [start, end) of the whole text that it stands for."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Empty where offsets were not asked for."""
    ending: bool = False
    """Whether it is the end token that follows a text, which stands for none of its words."""


def token_chunks(tokenizer: Any, text: str, *, offsets: bool = True) -> Iterator[TokenChunk]:
    """The tokens of a text, as the whole text would be tokenised, in pieces of bounded length."""
    begin = 0
    while begin < len(text):
        end = _division(tokenizer.kind, text, begin + TOKEN_CHUNK_CHARACTERS)
        part = text if (begin, end) == (0, len(text)) else text[begin:end]
        if offsets:
            ids, spans = tokenizer.encode_with_offsets(part)
            yield TokenChunk(ids, [(a + begin, b + begin) for a, b in spans] if begin else spans)
        else:
            yield TokenChunk(tokenizer.encode(part), [])
        begin = end


def _division(kind: str, text: str, near: int) -> int:
    """A place at or after `near` where dividing the text changes no token; its end if none."""
    if near >= len(text):
        return len(text)
    if kind == "char":
        inside = text.find(UNKNOWN, near - len(UNKNOWN) + 1, near + len(UNKNOWN) - 1)
        return near if inside < 0 else inside + len(UNKNOWN)
    if kind == "wordpiece" and (
        ideograph := CJK_CHARACTER.search(text, near, near + MAX_WORD_CHARACTERS)
    ):
        near_space = _BETWEEN_WORDS.search(text, near, ideograph.start() + 1)
        return near_space.start() if near_space else ideograph.start()
    found = _BETWEEN_WORDS.search(text, near)
    place = found.start() if found else len(text)
    return place if kind in ("word", "wordpiece") else min(place, near + MAX_WORD_CHARACTERS)
