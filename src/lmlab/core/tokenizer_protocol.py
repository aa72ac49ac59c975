"""The interface of tokenizers, of which nothing needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lmlab.core.vocabulary import Vocabulary


class TokenizerProtocol(Protocol):
    """Tokenizer: text to ids and back; lmlab's own, or an adapter of any other."""

    kind: str
    """word, char, byte, bpe, wordpiece …"""
    vocabulary: Vocabulary
    """Its size and special tokens."""

    @property
    def symbols(self) -> frozenset[int]:
        """The ids of the special tokens."""

    def token(self, id: int) -> str:
        """The string of a token id."""

    def id(self, token: str) -> int | None:
        """The id of a token string, or None."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start or end token."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the character span [start, end) of each token."""

    def characters_of(self, text: str, count: int) -> int:
        """Number of characters covered by the first `count` tokens of a text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens."""
