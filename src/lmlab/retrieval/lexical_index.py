"""Lexical index: BM25 over words, the sparse retrieval baseline.

The score is that of `retrieval/bm25.py`, computed by `bm25s` from inverted lists, which can be
memory-mapped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmlab.core.errors import UserError
from lmlab.retrieval.bm25 import BM25_B, BM25_K1
from lmlab.retrieval.exact_search import (
    Floats,
    Numbers,
    top_k_indices,
)

UNSPACED_SCRIPTS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
"""Scripts without spaces between words: each character is a word."""
WORD_PATTERN = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\W_{UNSPACED_SCRIPTS}]+")


def tokenize_words(text: str) -> list[str]:
    """Words of a text: lower-case runs of letters and digits; each Chinese character."""
    return WORD_PATTERN.findall(text.casefold())


class LexicalIndex:
    """Inverted index of documents. Memory: one number per distinct word of each document.

    Building is O(all words); a query costs the length of its words' lists.
    """

    kind = "bm25"

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.size = int(inner.scores["num_docs"])

    def __repr__(self) -> str:
        return f"LexicalIndex({self.size})"

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        """Build an index of the texts, with ids 0 … N - 1."""
        every = [tokenize_words(text) for text in texts]
        if not any(every):
            raise UserError("BM25 needs words, and no document has any.")
        inner = require_bm25s("BM25").BM25(k1=BM25_K1, b=BM25_B, method="lucene")
        inner.index(every, show_progress=False)
        return cls(inner)

    def search(self, texts: Sequence[str], k: int) -> tuple[Floats, Numbers]:
        """(B, k) scores and (B, k) ids of the best documents for each text, best first.

        Documents that share no word with the text are not returned: the remaining entries have
        score -inf and id -1. Ties go to the lower id.
        """
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}.")
        scores = np.full((len(texts), k), -np.inf, dtype=np.float32)
        numbers = np.full((len(texts), k), -1, dtype=np.int64)
        for row, text in enumerate(texts):
            known = [word for word in tokenize_words(text) if word in self._inner.vocab_dict]
            if known:
                found = np.asarray(self._inner.get_scores(known), dtype=np.float32)
                best = top_k_indices(found[None], min(k, self.size))[0]
                best = best[found[best] > 0]
                scores[row, : len(best)], numbers[row, : len(best)] = found[best], best
        return scores, numbers

    def save(self, folder: Path) -> None:
        """Write it to a folder."""
        self._inner.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, mapped: bool = True) -> LexicalIndex:
        """Load what `save` wrote; with `mapped`, the lists are memory-mapped."""
        load = require_bm25s(f"the index {folder}").BM25.load
        try:
            return cls(load(str(folder), mmap=mapped))
        except (OSError, LookupError, ValueError, TypeError, EOFError, AttributeError) as error:
            raise UserError(f"{folder} is damaged or cut short; build the index again.") from error


def require_bm25s(why: str) -> Any:
    """bm25s, or a UserError that says how to install it."""
    try:
        # Imported lazily: an optional dependency.
        import bm25s
    except ImportError as error:
        raise UserError(
            f"{why} needs bm25s, which is not installed: pip install 'lmlab[retrieval]'."
        ) from error
    return bm25s
