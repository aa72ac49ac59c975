"""Wrong documents that look right: those that BM25 finds for a question (Karpukhin et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.bi_encoders import BY_LENGTH, SATURATION


class LexicalNegatives:
    """For each question the `count` documents with the largest score, its own left out:

        score(x, z) = Σ_{w ∈ x} idf(w) tf(w, z) / (tf(w, z) + k (1 - b + b |z| / mean))

    over tokens w, symbols left out. The documents are those that it is shown, each once. Time for a
    batch: B times the tokens of all documents; memory: these once more, and a score for each
    document and question.
    """

    def __init__(self, vocabulary: Vocabulary, *, count: int) -> None:
        self.vocabulary = vocabulary
        self.count = count
        self._documents: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._weights = torch.zeros(0)

    def meet(self, documents: Sequence[Sequence[int]]) -> None:
        """Shown all documents, with their symbols."""
        self._documents = list(dict.fromkeys(tuple(each) for each in documents))
        self._numbers = {each: number for number, each in enumerate(self._documents)}
        self._weights = bm25_weights(
            [self._inner(each) for each in self._documents], self.vocabulary.size
        )

    def find(self, questions: Batch, own: Batch) -> Batch | None:
        """(B · count) documents, those of a question one after another; None where too few are
        known. `own` (B): the document that answers each question."""
        if len(self._documents) <= self.count:
            return None
        scores = self._weights @ self._counts(questions).T
        for row, tokens in enumerate(_rows(own)):
            if tokens in self._numbers:
                scores[self._numbers[tokens], row] = -torch.inf
        best = scores.topk(self.count, dim=0).indices.T
        chosen = [self._documents[number] for number in best.flatten().tolist()]
        return Batch.from_sequences(chosen, self.vocabulary.pad).to(questions.tokens.device)

    def _counts(self, questions: Batch) -> Tensor:
        """(B, V) how often each token stands in each question."""
        counts = torch.zeros(len(questions), self.vocabulary.size)
        for row, tokens in enumerate(_rows(questions)):
            for token in self._inner(tokens):
                counts[row, token] += 1
        return counts

    def _inner(self, tokens: Sequence[int]) -> list[int]:
        symbols = (self.vocabulary.opening, self.vocabulary.end)
        return [token for token in tokens if token not in symbols]


def bm25_weights(documents: Sequence[Sequence[int]], size: int) -> Tensor:
    """(N, V) sparse: what each of the tokens of a document counts in a question."""
    lengths = torch.tensor([len(each) for each in documents])
    document = torch.repeat_interleave(torch.arange(len(documents)), lengths)
    flat = torch.tensor([token for each in documents for token in each], dtype=torch.int64)
    pairs, often = torch.unique(document * size + flat, return_counts=True)
    row, token = pairs // size, pairs % size
    having = torch.bincount(token, minlength=size).float()
    rarity = torch.log1p((len(documents) - having + 0.5) / (having + 0.5))
    length = lengths.float() / lengths.float().mean().clamp(min=1)
    spread = SATURATION * (1 - BY_LENGTH + BY_LENGTH * length[row])
    values = rarity[token] * often / (often + spread)
    shape, places = (len(documents), size), torch.stack([row, token])
    found = torch.sparse_coo_tensor(places, values, shape, check_invariants=True)
    return found.coalesce()


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    pairs = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in pairs]
