"""Hard negatives by BM25: high-scoring non-answer documents (Karpukhin et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.bm25 import token_scores, token_weights


class BM25Negatives:
    """For each query the `count` documents with the highest BM25 score, except its own.

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
        self._documents = list(dict.fromkeys(tuple(each) for each in documents))
        self._numbers = {each: number for number, each in enumerate(self._documents)}
        self._weights = token_weights(
            [self._inner(each) for each in self._documents], self.vocabulary.size
        )

    def find(self, questions: Batch, own: Batch) -> Batch | None:
        """(B · count) documents, those of a query consecutive; None if too few are known. `own`
        (B): the positive document of each query."""
        if len(self._documents) <= self.count:
            return None
        asked = [self._inner(tokens) for tokens in _rows(questions)]
        scores = token_scores(self._weights, asked)
        for row, tokens in enumerate(_rows(own)):
            if tokens in self._numbers:
                scores[self._numbers[tokens], row] = -torch.inf
        best = scores.topk(self.count, dim=0).indices.T
        chosen = [self._documents[number] for number in best.flatten().tolist()]
        return Batch.collate(chosen, self.vocabulary.pad).to(questions.tokens.device)

    def _inner(self, tokens: Sequence[int]) -> list[int]:
        symbols = (self.vocabulary.bos, self.vocabulary.end)
        return [token for token in tokens if token not in symbols]


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    pairs = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in pairs]
