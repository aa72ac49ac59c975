"""BM25 (Robertson et al. 1994) over tokens: lexical relevance of a document to a query.

    score(x, z) = Σ_{w ∈ x} idf(w) tf / (tf + k (1 - b + b |z| / mean length))
    idf(w) = log(1 + (N - n_w + ½) / (n_w + ½)),  k = 1.5, b = 0.75

with tf the count of w in z, and n_w the number of the N documents with w: Lucene's form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BM25_K1, BM25_B = 1.5, 0.75
"""Term-frequency saturation and length normalisation."""


def inverse_document_frequency(having: Tensor, documents: int) -> Tensor:
    """(V,) idf of tokens with document frequencies `having` (V,)."""
    return torch.log1p((documents - having + 0.5) / (having + 0.5))


def length_normalisation(lengths: Tensor) -> Tensor:
    """Length term of the denominator, for lengths relative to the mean."""
    return BM25_K1 * (1 - BM25_B + BM25_B * lengths)


def token_weights(documents: Sequence[Sequence[int]], size: int) -> Tensor:
    """(N, V) sparse BM25 weights of the tokens of each document."""
    lengths = torch.tensor([len(each) for each in documents], dtype=torch.int64)
    document = torch.repeat_interleave(torch.arange(len(documents)), lengths)
    flat = torch.tensor([token for each in documents for token in each], dtype=torch.int64)
    pairs, often = torch.unique(document * size + flat, return_counts=True)
    row, token = pairs // size, pairs % size
    having = torch.bincount(token, minlength=size).float()
    length = lengths.float() / lengths.float().mean().clamp(min=1)
    values = (
        inverse_document_frequency(having, len(documents))[token]
        * often
        / (often + length_normalisation(length[row]))
    )
    shape, places = (len(documents), size), torch.stack([row, token])
    found = torch.sparse_coo_tensor(places, values, shape, check_invariants=True)
    return found.coalesce()


def token_scores(weights: Tensor, questions: Sequence[Sequence[int]]) -> Tensor:
    """(N, B) scores of each document, by its weights (N, V), for each query.

    Time B times the non-zero weights; memory (B, V) numbers plus the scores.
    """
    counts = torch.zeros(len(questions), weights.shape[1])
    for row, tokens in enumerate(questions):
        for token in tokens:
            counts[row, token] += 1
    return weights @ counts.T
