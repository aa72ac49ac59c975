"""Text codecs: our word, character and byte tokenizers in plain Python, with the library's ids."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lmlab.core.vocabulary import UNKNOWN

CJK_CHARACTER = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

CHARACTER_KINDS = ("char", "byte")
"""Kinds of tokenizers whose tokens are characters or their bytes, spaces included."""
REPLACEMENT_CHARACTER = "\ufffd"
"""What an incomplete UTF-8 sequence is decoded to."""
Span = tuple[int, int]


class TextCodec(Protocol):
    """Ids of a text and their character spans, without special tokens."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def spans(self, text: str) -> list[Span]:
        """The character span [start, end) of each token."""

    def words(self, text: str) -> list[int]:
        """Word index, from 0, of each token; non-decreasing."""


class WordCodec:
    """Words between white space, looked up in a dictionary."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def encode(self, text: str) -> list[int]:
        unknown, get = self._ids[UNKNOWN], self._ids.get
        return [get(word, unknown) for word in text.split()]

    def spans(self, text: str) -> list[Span]:
        return [match.span() for match in re.finditer(r"\S+", text)]

    def words(self, text: str) -> list[int]:
        return list(range(len(text.split())))


class CharacterCodec:
    """Characters, looked up in a dictionary; a literal <unk> is the unknown token."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def encode(self, text: str) -> list[int]:
        unknown, get = self._ids[UNKNOWN], self._ids.get
        if UNKNOWN not in text:
            return [get(character, unknown) for character in text]
        first, *others = text.split(UNKNOWN)
        ids = [get(character, unknown) for character in first]
        for piece in others:
            ids += [unknown, *(get(character, unknown) for character in piece)]
        return ids

    def spans(self, text: str) -> list[Span]:
        if UNKNOWN not in text:
            return list(zip(range(len(text)), range(1, len(text) + 1), strict=True))
        return [match.span() for match in re.finditer(rf"{UNKNOWN}|.", text, re.DOTALL)]

    def words(self, text: str) -> list[int]:
        return _word_indices([text[low:high] for low, high in self.spans(text)])


class ByteCodec:
    """The bytes of a text in UTF-8, byte b with the id `first` + b: nothing is unknown.

    All bytes of a character have the character's span. Ids that spell no valid UTF-8, as a model
    may generate, are decoded with U+FFFD (�) in place of each incomplete character.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first + 256

    def encode(self, text: str) -> list[int]:
        return [self.first + byte for byte in text.encode()]

    def spans(self, text: str) -> list[Span]:
        if text.isascii():
            return list(zip(range(len(text)), range(1, len(text) + 1), strict=True))
        spans: list[Span] = []
        for index, character in enumerate(text):
            spans += [(index, index + 1)] * utf8_length(character)
        return spans

    def words(self, text: str) -> list[int]:
        indices: list[int] = []
        for index, character in zip(_word_indices(text), text, strict=True):
            indices += [index] * utf8_length(character)
        return indices

    def decode(self, ids: Iterable[int]) -> str:
        """The text of byte ids."""
        return bytes(id - self.first for id in ids).decode("utf-8", "replace")


def utf8_length(text: str) -> int:
    """The number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _word_indices(tokens: Sequence[str]) -> list[int]:
    """Words are runs between white space, each white space, and each CJK character."""
    separate = [token.isspace() or bool(CJK_CHARACTER.match(token)) for token in tokens]
    starts = [this or last for last, this in itertools.pairwise([True, *separate])]
    return [count - 1 for count in itertools.accumulate(starts)]
