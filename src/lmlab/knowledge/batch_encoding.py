"""Many texts as tokens, at once where the tokeniser can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lmlab.core.protocols import TokenizerProtocol


@runtime_checkable
class BatchTokenizer(Protocol):
    """A tokeniser that is quicker with many texts than with one after another."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


def batch_encode(pieces: TokenizerProtocol, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text."""
    if isinstance(pieces, BatchTokenizer):
        return pieces.encode_batch(texts)
    return [pieces.encode(text) for text in texts]
