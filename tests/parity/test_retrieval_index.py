"""Search against brute force, and BM25 against its formula worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmlab.retrieval.exact import largest_by_numpy
from lmlab.retrieval.index import DenseIndex
from lmlab.retrieval.lexical import LexicalIndex


@pytest.mark.parametrize("questions", [1, 3, 40])
@pytest.mark.parametrize("width", [5, 64])
def test_flat_search_is_brute_force(questions: int, width: int):
    """All inner products in double precision, sorted; both of FAISS's ways and numpy's."""
    random = np.random.default_rng(width)
    vectors = random.standard_normal((1000, width)).astype(np.float32)
    queries = random.standard_normal((questions, width)).astype(np.float32)
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = np.argsort(-products, axis=1)[:, :20]
    best = np.take_along_axis(products, order, 1)
    searches = (DenseIndex.build(vectors).search, lambda q, k: largest_by_numpy(q, vectors, k))
    for search in searches:
        scores, numbers = search(queries, 20)
        np.testing.assert_allclose(scores, best, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(numbers, order)


def test_a_small_world_that_keeps_all_is_brute_force():
    """With as many candidates as there are vectors a connected small world misses none."""
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 8)).astype(np.float32)
    queries = random.standard_normal((20, 8)).astype(np.float32)
    index = DenseIndex.build(vectors, kind="hnsw")
    order = np.argsort(-(queries @ vectors.T), axis=1)
    np.testing.assert_array_equal(index.search(queries, 200)[1], order)


def test_bm25_by_hand():
    """N = 3 documents of 3, 5 and 1 words: mean length 3; k1 = 1.5, b = 0.75.

    "cat" stands in documents 0 (once) and 1 (twice): n = 2, idf = ln(1 + 1.5/2.5) = ln 1.6.
    "dog" in document 1 (once) alone: n = 1, idf = ln(1 + 2.5/1.5) = ln(8/3).
    What tf is held against, 1.5 (0.25 + 0.75 length / 3): 1.5 for document 0, 2.25 for 1.
    """
    pytest.importorskip("bm25s")
    index = LexicalIndex.build(["the cat sat", "cat and dog and cat", "bird"])
    scores, numbers = index.search(["cat dog", "cat cat", "bird"], 3)
    first = [
        math.log(1.6) * 2 / (2 + 2.25) + math.log(8 / 3) * 1 / (1 + 2.25),
        math.log(1.6) * 1 / (1 + 1.5),
    ]
    assert numbers[0].tolist() == [1, 0, -1]
    assert scores[0, :2].tolist() == pytest.approx(first, rel=1e-6)
    # A word that is asked for twice counts twice.
    assert numbers[1].tolist() == [1, 0, -1]
    twice = [2 * math.log(1.6) * 2 / 4.25, 2 * math.log(1.6) / 2.5]
    assert scores[1, :2].tolist() == pytest.approx(twice, rel=1e-6)
    # One word in a document of length 1: 1.5 (0.25 + 0.25) = 0.75.
    assert scores[2, 0] == pytest.approx(math.log(8 / 3) / 1.75, rel=1e-6)
