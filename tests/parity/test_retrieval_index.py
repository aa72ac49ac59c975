"""Search against brute force, and BM25 against its formula worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmlab.retrieval.bm25 import LexicalIndex, token_scores, token_weights
from lmlab.retrieval.dense_index import DenseIndex
from lmlab.retrieval.exact_search import top_inner_products_numpy


@pytest.mark.parametrize("questions", [1, 3, 40])
@pytest.mark.parametrize("width", [5, 64])
def test_flat_search_equals_brute_force(questions: int, width: int):
    """All inner products in double precision, sorted; by FAISS and by numpy."""
    random = np.random.default_rng(width)
    vectors = random.standard_normal((1000, width)).astype(np.float32)
    queries = random.standard_normal((questions, width)).astype(np.float32)
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = np.argsort(-products, axis=1)[:, :20]
    best = np.take_along_axis(products, order, 1)
    searches = (
        DenseIndex.build(vectors).search,
        lambda q, k: top_inner_products_numpy(q, vectors, k),
    )
    for search in searches:
        scores, numbers = search(queries, 20)
        np.testing.assert_allclose(scores, best, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(numbers, order)


def test_exhaustive_hnsw_search_equals_brute_force():
    """With as many candidates as there are vectors a connected small world misses none."""
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 8)).astype(np.float32)
    queries = random.standard_normal((20, 8)).astype(np.float32)
    index = DenseIndex.build(vectors, kind="hnsw")
    order = np.argsort(-(queries @ vectors.T), axis=1)
    np.testing.assert_array_equal(index.search(queries, 200)[1], order)


CAT, DOG, BIRD = range(3)
BY_HAND = [
    [math.log(1.6) / 2.5, math.log(1.6) * 2 / 4.25 + math.log(8 / 3) / 3.25, 0],
    [2 * math.log(1.6) / 2.5, 2 * math.log(1.6) * 2 / 4.25, 0],
    [0, 0, math.log(8 / 3) / 1.75],
]
"""Scores of "the cat sat", "cat and dog and cat" and "bird" for "cat dog", "cat cat" and "bird".

N = 3 documents of 3, 5 and 1 words: mean length 3; k = 1.5, b = 0.75.
"cat" occurs in documents 0 (once) and 1 (twice): n = 2, idf = ln(1 + 1.5/2.5) = ln 1.6.
"dog" in document 1 (once) alone: n = 1, idf = ln(1 + 2.5/1.5) = ln(8/3); "bird" alike.
What tf is held against, 1.5 (0.25 + 0.75 length / 3): 1.5 for document 0, 2.25 for 1, 0.75 for 2.
A word that occurs twice in a query counts twice.
"""


def test_bm25_of_words_by_hand():
    pytest.importorskip("bm25s")
    index = LexicalIndex.build(["the cat sat", "cat and dog and cat", "bird"])
    scores, numbers = index.search(["cat dog", "cat cat", "bird"], 3)
    assert numbers.tolist() == [[1, 0, -1], [1, 0, -1], [2, -1, -1]]
    for row, expected in enumerate(BY_HAND):
        actual = [each for each in sorted(expected, reverse=True) if each]
        assert scores[row, : len(actual)].tolist() == pytest.approx(actual, rel=1e-6)


def test_bm25_of_tokens_by_hand():
    """The same documents as tokens: what is neither cat nor dog nor bird is 3, 4 and 5."""
    weights = token_weights([[3, CAT, 4], [CAT, 5, DOG, 5, CAT], [BIRD]], 6)
    scores = token_scores(weights, [[CAT, DOG], [CAT, CAT], [BIRD]])
    for row, expected in enumerate(BY_HAND):
        assert scores[:, row].tolist() == pytest.approx(expected, rel=1e-6)


def test_bm25_of_tokens_equals_bm25s():
    """Random documents, some of them empty, by both implementations."""
    bm25s = pytest.importorskip("bm25s")
    random = np.random.default_rng(0)
    documents = [random.integers(0, 30, length).tolist() for length in random.integers(0, 20, 60)]
    theirs = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    theirs.index([[str(token) for token in each] for each in documents], show_progress=False)
    question = random.integers(0, 30, 8).tolist()
    expected = theirs.get_scores([str(token) for token in question])
    actual = token_scores(token_weights(documents, 30), [question])[:, 0]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-5, atol=1e-6)
