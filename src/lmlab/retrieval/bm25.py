"""BM25 (Robertson et al. 1994): token scores, a lexical index over words, and hard negatives.

    score(x, z) = Σ_{w ∈ x} idf(w) tf / (tf + k (1 - b + b |z| / mean length))
    idf(w) = log(1 + (N - n_w + ½) / (n_w + ½)),  k = 1.5, b = 0.75

with tf the count of w in z, and n_w the number of the N documents with w: Lucene's form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.exact_search import Floats, Numbers, top_k_indices

BM25_K1, BM25_B = 1.5, 0.75
"""Term-frequency saturation and length normalisation."""


def inverse_document_frequency(frequencies: Tensor, documents: int) -> Tensor:
    """(V,) idf of tokens with document `frequencies` (V,)."""
    return torch.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))


def length_normalisation(lengths: Tensor) -> Tensor:
    """Length term of the denominator, for lengths relative to the mean."""
    return BM25_K1 * (1 - BM25_B + BM25_B * lengths)


def token_weights(documents: Sequence[Sequence[int]], size: int) -> Tensor:
    """(N, V) sparse BM25 weights of the tokens of each document."""
    lengths = torch.tensor([len(tokens) for tokens in documents], dtype=torch.int64)
    document = torch.repeat_interleave(torch.arange(len(documents)), lengths)
    flat = torch.tensor([token for tokens in documents for token in tokens], dtype=torch.int64)
    pairs, frequency = torch.unique(document * size + flat, return_counts=True)
    row, token = pairs // size, pairs % size
    document_frequencies = torch.bincount(token, minlength=size).float()
    length = lengths.float() / lengths.float().mean().clamp(min=1)
    values = (
        inverse_document_frequency(document_frequencies, len(documents))[token]
        * frequency
        / (frequency + length_normalisation(length[row]))
    )
    shape, index = (len(documents), size), torch.stack([row, token])
    weights = torch.sparse_coo_tensor(index, values, shape, check_invariants=True)
    return weights.coalesce()


def token_scores(weights: Tensor, questions: Sequence[Sequence[int]]) -> Tensor:
    """(N, B) scores of each document, by its weights (N, V), for each query.

    Time B times the non-zero weights; memory (B, V) numbers plus the scores.
    """
    counts = torch.zeros(len(questions), weights.shape[1])
    for row, tokens in enumerate(questions):
        for token in tokens:
            counts[row, token] += 1
    return weights @ counts.T


class LexicalIndex:
    """Inverted index of documents by bm25s. Memory: one number per distinct word of a document.

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
        documents = [tokenize_words(text) for text in texts]
        if not any(documents):
            raise UserError("BM25 needs words, and no document has any.")
        inner = require_bm25s("BM25").BM25(k1=BM25_K1, b=BM25_B, method="lucene")
        inner.index(documents, show_progress=False)
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
            query = [word for word in tokenize_words(text) if word in self._inner.vocab_dict]
            if query:
                all_scores = np.asarray(self._inner.get_scores(query), dtype=np.float32)
                best = top_k_indices(all_scores[None], min(k, self.size))[0]
                best = best[all_scores[best] > 0]
                scores[row, : len(best)], numbers[row, : len(best)] = all_scores[best], best
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


UNSPACED_SCRIPTS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
"""Scripts without spaces between words: each character is a word."""


WORD_PATTERN = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\W_{UNSPACED_SCRIPTS}]+")


def tokenize_words(text: str) -> list[str]:
    """Words of a text: lower-case runs of letters and digits; each Chinese character."""
    return WORD_PATTERN.findall(text.casefold())


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


class BM25Negatives:
    """Hard negatives (Karpukhin et al. 2020): the `count` best documents by BM25, except its own.

    Terms are tokens without special tokens. The documents are those of `setup_documents`,
    deduplicated. Time per batch: B times the tokens of all documents; memory: these once more, and
    a score per document and query.
    """

    def __init__(self, vocabulary: Vocabulary, *, count: int) -> None:
        self.vocabulary = vocabulary
        self.count = count
        self._documents: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._weights = torch.zeros(0)

    def setup_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Receive all documents, with their special tokens."""
        self._documents = list(dict.fromkeys(tuple(document) for document in documents))
        self._numbers = {document: number for number, document in enumerate(self._documents)}
        self._weights = token_weights(
            [self._inner(document) for document in self._documents], self.vocabulary.size
        )

    def find(self, questions: Batch, positives: Batch) -> Batch | None:
        """(B · count) documents, those of a query consecutive; None if too few are known.

        `positives` (B): the positive document of each query.
        """
        if len(self._documents) <= self.count:
            return None
        queries = [self._inner(tokens) for tokens in _rows(questions)]
        scores = token_scores(self._weights, queries)
        for row, tokens in enumerate(_rows(positives)):
            if tokens in self._numbers:
                scores[self._numbers[tokens], row] = -torch.inf
        best = scores.topk(self.count, dim=0).indices.T
        chosen = [self._documents[number] for number in best.flatten().tolist()]
        return Batch.collate(chosen, self.vocabulary.pad).to(questions.tokens.device)

    def _inner(self, tokens: Sequence[int]) -> list[int]:
        special_tokens = (self.vocabulary.bos, self.vocabulary.end)
        return [token for token in tokens if token not in special_tokens]


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    pairs = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in pairs]
