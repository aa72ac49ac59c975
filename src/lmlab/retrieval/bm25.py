"""BM25 (Robertson et al. 1994) over tokens, which is how well a document fits a question by words:

    score(x, z) = Σ_{w ∈ x} idf(w) tf / (tf + k (1 - b + b |z| / mean length))
    idf(w) = log(1 + (N - n_w + ½) / (n_w + ½)),  k = 1.5, b = 0.75

with tf how often w stands in z, and n_w in how many of N documents: Lucene's form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BM25_K1, BM25_B = 1.5, 0.75
"""How soon a word that comes again counts no more, and how far long documents pay."""


def inverse_document_frequency(having: Tensor, documents: int) -> Tensor:
    """(V,) idf of tokens that stand in so many (V,) of all documents."""
    return torch.log1p((documents - having + 0.5) / (having + 0.5))


def length_normalisation(lengths: Tensor) -> Tensor:
    """What is added to tf below the line, for documents so many times as long as the mean."""
    return BM25_K1 * (1 - BM25_B + BM25_B * lengths)


def token_weights(documents: Sequence[Sequence[int]], size: int) -> Tensor:
    """(N, V) sparse: what each of the tokens of a document counts in a question."""
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
    """(N, B) of each document, by its weights (N, V), for each question.

    Time B times the weights that are not zero; memory (B, V) numbers beside the scores.
    """
    counts = torch.zeros(len(questions), weights.shape[1])
    for row, tokens in enumerate(questions):
        for token in tokens:
            counts[row, token] += 1
    return weights @ counts.T
