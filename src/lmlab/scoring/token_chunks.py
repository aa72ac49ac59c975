"""Tokenisation in chunks, so that a line of any length is tokenised in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from lmlab.core.vocabulary import UNKNOWN
from lmlab.data.tokenizers import CJK_CHARACTER

TOKEN_CHUNK_CHARACTERS = 65_536
MAX_WORD_CHARACTERS = 262_144
"""A text without a boundary for this long is divided anyway for subword tokenisers."""

# Split before a single space between two words: whether a tokeniser drops the space or joins it to
# the next word, both sides are tokenised as they would be together.
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


class TokenChunk(NamedTuple):
    """Ids and their character spans [start, end) in the whole text."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Empty unless offsets are requested."""
    ending: bool = False
    """Whether it is the end token after a text."""


def token_chunks(tokenizer: Any, text: str, *, offsets: bool = True) -> Iterator[TokenChunk]:
    """Tokenise a text in chunks of bounded length, with the same tokens as the whole text."""
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
    """A character offset at or after `near` where splitting changes no token; the end if none."""
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
