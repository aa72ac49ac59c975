"""Sentence splitting by token spelling."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lmlab.core.protocols import TokenizerProtocol

SENTENCE_END_MARKS = (".", "!", "?", ";", "。", "！", "？", "；")
"""Sentence-final punctuation."""
WHITESPACE_MARKERS = ("</w>", "▁", "Ġ")
"""Tokenisers' whitespace markers, after a piece or alone."""


class SentenceSplitter:
    """Splits texts after tokens that end a sentence; a text without any is one sentence.

    The tokens are known from the tokeniser (`setup_tokenizer`). Words with attached punctuation
    ("dog.") end a sentence too, at the price that "e.g." does as well.
    """

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self.ends = np.array(sorted(set(ends)), dtype=np.int64)
        """Ids of sentence-final tokens."""

    def setup_tokenizer(self, pieces: TokenizerProtocol, size: int) -> None:
        """Find which of a tokeniser's `size` tokens end a sentence; earlier ones are kept."""
        found = {token for token in range(size) if is_sentence_end(pieces.token(token))}
        self.ends = np.array(sorted(found | set(self.ends.tolist())), dtype=np.int64)

    def split(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Positions of each sentence of a text (T,); consecutive marks end only one."""
        ending = self.is_end(tokens)
        last = ending & ~np.append(ending[1:], False)
        return [
            part for part in np.split(np.arange(len(tokens)), last.nonzero()[0] + 1) if len(part)
        ]

    def is_end(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) bool: the sentence-final tokens."""
        return np.isin(tokens, self.ends)


def is_sentence_end(token: str) -> bool:
    """Whether a token, as the vocabulary spells it, is an end mark or a word with one."""
    for ending in WHITESPACE_MARKERS:
        token = token.removesuffix(ending)
    return token.endswith((*SENTENCE_END_MARKS, *map(byte_level_spelling, SENTENCE_END_MARKS)))


def byte_level_spelling(text: str) -> str:
    """Byte-level BPE spelling of a text: each byte a visible character, by GPT-2's table.

    Bytes of visible characters stand for themselves, the others are numbered from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in visible)
    spelled = {byte: byte for byte in visible}
    spelled |= {byte: 0x100 + number for number, byte in enumerate(others)}
    return "".join(chr(spelled[byte]) for byte in text.encode())
