"""BM25 over words, the lexical baseline: documents that share rare words with a text.

The score is that of `retrieval/bm25.py`, computed by `bm25s`: of each word it keeps the list of
documents that have it, which can stay on the disk.
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
    """The words of a text: runs of letters and digits in lower case; each Chinese character."""
    return WORD_PATTERN.findall(text.casefold())


class LexicalIndex:
    """Documents by the words that stand in them. Memory: a number for each word of each document.

    Building is O(all words); a question costs as much as the lists of its words are long.
    """

    kind = "bm25"

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.size = int(inner.scores["num_docs"])

    def __repr__(self) -> str:
        return f"LexicalIndex({self.size})"

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        """An index of the texts by their numbers 0 … N - 1."""
        every = [tokenize_words(text) for text in texts]
        if not any(every):
            raise UserError("no document has a word in it, and BM25 looks for words.")
        inner = require_bm25s("BM25").BM25(k1=BM25_K1, b=BM25_B, method="lucene")
        inner.index(every, show_progress=False)
        return cls(inner)

    def search(self, texts: Sequence[str], k: int) -> tuple[Floats, Numbers]:
        """(B, k) scores and (B, k) numbers of the best documents for each text, best first.

        A document that shares no word with the text is not found: the places behind the found ones
        have score -inf and number -1. Of equal scores the lower number comes first.
        """
        if k < 1:
            raise UserError(f"at least 1 document must be asked for, and {k} came.")
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
        """Write it into a folder."""
        self._inner.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, mapped: bool = True) -> LexicalIndex:
        """What `save` wrote; with `mapped`, the lists stay on the disk until they are looked at."""
        load = require_bm25s(f"the index {folder}").BM25.load
        try:
            return cls(load(str(folder), mmap=mapped))
        except (OSError, LookupError, ValueError, TypeError, EOFError, AttributeError) as error:
            raise UserError(f"{folder} is damaged or cut short; build the index again.") from error


def require_bm25s(why: str) -> Any:
    """The library, or a sentence that says how to get it."""
    try:
        # Imported late: it is an extra.
        import bm25s
    except ImportError as error:
        raise UserError(
            f"{why} needs bm25s, which is not installed: pip install 'lmlab[retrieval]'."
        ) from error
    return bm25s
