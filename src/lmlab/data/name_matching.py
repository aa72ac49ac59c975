"""Entity name matching: find a name in a text, and the sentence around it."""

from __future__ import annotations

import re
from functools import lru_cache

_END = re.compile(r"[.!?。！？](?=\s|$)|(?<=[。！？])")


def find_entity_name(text: str, name: str) -> tuple[int, int] | None:
    """Characters [low, high) of the first whole-word occurrence of a name in a text.

    Case-insensitive; never inside a longer word.
    """
    match = _pattern(name).search(text)
    return None if match is None else match.span()


def sentence_around(text: str, low: int, high: int) -> str:
    """The sentence of a text that contains characters [low, high), stripped."""
    ends = [match.end() for match in _END.finditer(text)]
    first = max((end for end in ends if end <= low), default=0)
    last = min((end for end in ends if end >= high), default=len(text))
    return text[first:last].strip()


@lru_cache(maxsize=65536)
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name.strip())}(?!\w)", re.IGNORECASE)
