"""Batch tokenisation, where the tokeniser supports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lmlab.core.protocols import TokenizerProtocol


@runtime_checkable
class BatchTokenizer(Protocol):
    """A tokeniser with a fast method for many texts."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


def batch_encode(pieces: TokenizerProtocol, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text."""
    if isinstance(pieces, BatchTokenizer):
        return pieces.encode_batch(texts)
    return [pieces.encode(text) for text in texts]
