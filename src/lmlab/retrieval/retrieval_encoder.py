"""Retrieval encoder interface: texts to vectors for an index, and how an encoder is identified.

Encoders from runs and checkpoints are built in `interop/text_encoders.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lmlab.retrieval.exact_search import Floats


@dataclass(frozen=True, kw_only=True)
class EncoderDescription:
    """Identity of an encoder; an index records that of the one it was built with."""

    name: str
    """The model or the kind of checkpoint."""
    path: str
    """The folder it was loaded from; may be empty."""
    fingerprint: str
    """Hash of weights, tokenizer and everything else that decides its vectors."""
    max_length: int | None = None
    """Maximum tokens of a document, including special tokens; None for no limit, and in indexes of
    format 1, which treat titles differently and do not record it."""


class RetrievalEncoder(Protocol):
    """Encodes documents and queries into one space, scored by inner product."""

    width: int
    """W, the vector dimension."""
    window: int | None
    """Maximum tokens of a text, including special tokens; None for no limit."""
    truncated: int
    """Number of texts truncated so far."""
    description: EncoderDescription

    def encode_documents(self, texts: Sequence[str]) -> Floats:
        """(B, W) one vector per document."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """(B, W) one vector per query."""
        ...
