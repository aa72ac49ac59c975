"""What turns texts into vectors for an index: the contract, and how one is told from another.

Those that stand on a run or a checkpoint are made in `interop/text_encoders.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lmlab.retrieval.exact_search import Floats


@dataclass(frozen=True, kw_only=True)
class EncoderDescription:
    """Which encoder it is; an index keeps this of the one it was built with."""

    name: str
    """The system or the kind of checkpoint."""
    path: str
    """The folder it was read from; empty where there was none."""
    fingerprint: str
    """Hash of weights, tokeniser and whatever else decides its vectors."""
    max_length: int | None = None
    """Tokens of a document that it reads at most, symbols counted; None for any number, and in
    indexes of format 1, which read titles otherwise and do not tell."""


class RetrievalEncoder(Protocol):
    """Documents and questions as vectors of one space; the inner product says how well they fit."""

    width: int
    """W, the numbers of a vector."""
    window: int | None
    """Tokens of a text that it reads at most, symbols counted; None for any number."""
    truncated: int
    """Texts so far of which it read the beginning only."""
    description: EncoderDescription

    def encode_documents(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each document."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """(B, W) a vector for each question."""
        ...
