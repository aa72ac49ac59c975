"""Where the sentences of a text end, by the look of its tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lmlab.core.protocols import TokenizerProtocol

SENTENCE_END_MARKS = (".", "!", "?", ";", "。", "！", "？", "；")
"""What a sentence ends with."""
WHITESPACE_MARKERS = ("</w>", "▁", "Ġ")
"""What tokenisers write after a piece, or alone, to tell white space."""


class SentenceSplitter:
    """Cuts texts after tokens that end a sentence; a text without any is one sentence.

    The tokens are known from the tokeniser (`meet`). Whoever writes words and marks as one token
    ("dog.") is understood too, at the price that "e.g." ends a sentence.
    """

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self.ends = np.array(sorted(set(ends)), dtype=np.int64)
        """Ids of the tokens that end a sentence."""

    def setup_tokenizer(self, pieces: TokenizerProtocol, size: int) -> None:
        """Learn which of a tokeniser's `size` tokens end a sentence; those known before stay."""
        found = {token for token in range(size) if is_sentence_end(pieces.token(token))}
        self.ends = np.array(sorted(found | set(self.ends.tolist())), dtype=np.int64)

    def split(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The places of each sentence of a text (T,); several marks in a row end only one."""
        ending = self.is_end(tokens)
        last = ending & ~np.append(ending[1:], False)
        return [
            part for part in np.split(np.arange(len(tokens)), last.nonzero()[0] + 1) if len(part)
        ]

    def is_end(self, tokens: np.ndarray) -> np.ndarray:
        """(T,) bool: the tokens that end a sentence."""
        return np.isin(tokens, self.ends)


def is_sentence_end(token: str) -> bool:
    """Whether a token, as the vocabulary spells it, is an end mark or a word with one."""
    for ending in WHITESPACE_MARKERS:
        token = token.removesuffix(ending)
    return token.endswith((*SENTENCE_END_MARKS, *map(byte_level_spelling, SENTENCE_END_MARKS)))


def byte_level_spelling(text: str) -> str:
    """How byte-level BPE spells a text: each byte a visible character, by GPT-2's table.

    Bytes of visible characters stand for themselves, the others are numbered from 256 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in visible)
    spelled = {byte: byte for byte in visible}
    spelled |= {byte: 0x100 + number for number, byte in enumerate(others)}
    return "".join(chr(spelled[byte]) for byte in text.encode())
