"""Membership of texts and n-grams: no false negatives, few false positives, few bytes."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.data import membership
from lmlab.data.membership import HashSet, NgramSet, TextSet, splitmix64, text_hashes

TEXTS = [[2, 5, 6, 3], [2, 6, 5, 3], [2, 5, 3], [2, 5, 6, 7, 3], [2, 3]]


def flatten(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for text in texts for token in text], dtype=np.uint16)
    return tokens, np.concatenate([[0], np.cumsum([len(text) for text in texts])])


def padded(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(text) for text in texts])
    tokens = np.zeros((len(texts), lengths.max()), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return tokens, lengths


def test_text_set_contains_exactly_the_corpus_texts():
    known = TextSet(*flatten(TEXTS))
    others = [[2, 6, 6, 3], [2, 5, 6], [2, 5, 6, 3, 3], [2, 5, 5, 7, 3], [2, 6, 3]]
    tokens, lengths = padded(TEXTS + others)
    contained = known(tokens, lengths, np.ones(len(tokens), dtype=np.int64))
    assert contained.tolist() == [True] * len(TEXTS) + [False] * len(others)


def test_text_set_ignores_padding():
    known = TextSet(*flatten(TEXTS))
    tokens, lengths = padded(TEXTS)
    wider = np.full((len(TEXTS), 9), 9, dtype=np.int64)
    wider[:, : tokens.shape[1]] = np.where(tokens == 0, 9, tokens)
    assert known(wider, lengths, np.ones(len(TEXTS), dtype=np.int64)).all()


def test_ngram_set_checks_ngrams_covering_a_position():
    """Of 2 5 6 8 3 all bigrams but (6, 8) and (8, 3) are in the corpus."""
    known = NgramSet(*flatten(TEXTS), size=2)
    tokens, lengths = padded([[2, 5, 6, 8, 3]] * 5)
    positions = np.arange(5)
    # (5, 6) and (6, 8) cover position 2, (2, 5) and (5, 6) position 1, (2, 5) position 0.
    assert known(tokens, lengths, positions).tolist() == [True, True, False, False, False]


def test_ngrams_do_not_cross_text_boundaries():
    """(3, 2) occurs in the flat ids wherever one text follows another."""
    known = NgramSet(*flatten(TEXTS), size=2)
    tokens, lengths = padded([[3, 2], [2, 5]])
    assert known(tokens, lengths, np.zeros(2, dtype=np.int64)).tolist() == [False, True]


def test_texts_shorter_than_an_ngram_are_not_members():
    known = NgramSet(*flatten(TEXTS), size=4)
    assert not known(*padded([[2, 5, 3]]), np.array([1])).any()


def test_chunked_hashing_equals_whole_hashing(monkeypatch: pytest.MonkeyPatch):
    """Also for texts that cross a chunk boundary."""
    whole, grams = text_hashes(*flatten(TEXTS)), NgramSet(*flatten(TEXTS), size=3).hashes
    monkeypatch.setattr(membership, "TOKENS_AT_ONCE", 3)
    assert (text_hashes(*flatten(TEXTS)) == whole).all()
    assert len(NgramSet(*flatten(TEXTS), size=3).hashes) == len(grams)


def test_empty_hash_set_contains_nothing():
    assert (
        not HashSet(np.zeros(0, np.uint64))
        .contains(splitmix64(np.arange(3, dtype=np.uint64)))
        .any()
    )


@pytest.mark.parametrize(("bits", "max_bytes"), [(32, 4.6), (16, 2.6)])
def test_hash_set_memory_and_false_positive_rate(bits, max_bytes):
    """A bucket has n / 2^b entries, so the false positive rate is n / 2^(b + bits)."""
    size = 1_000_000
    hash_set = HashSet(splitmix64(np.arange(size, dtype=np.uint64)), bits=bits)
    assert len(hash_set) == size
    assert hash_set.bytes / size < max_bytes
    assert hash_set.contains(splitmix64(np.arange(0, size, 7, dtype=np.uint64))).all()
    absent = splitmix64(np.arange(size, 2 * size, dtype=np.uint64))
    false_positives = int(hash_set.contains(absent).sum())
    # 2^16 buckets: the largest power of two with at least 8 entries per bucket.
    expected = len(absent) * size / 2.0 ** (16 + bits)
    assert abs(false_positives - expected) < 5 * np.sqrt(expected) + 1


def test_ngram_set_of_a_million_tokens():
    """A million tokens in texts of twenty: every 5-gram is a member, a thousand others are not."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 5000, 1_000_000).astype(np.uint16)
    offsets = np.arange(0, len(tokens) + 1, 20)
    known = NgramSet(tokens, offsets, size=5)
    assert len(known.hashes) == pytest.approx(50_000 * 16, rel=1e-3)  # 16 per text, few duplicates
    assert known.hashes.bytes / len(known.hashes) < 4.6
    some = tokens[: 20 * 1000].reshape(1000, 20).astype(np.int64)
    lengths, positions = np.full(1000, 20), generator.integers(1, 19, 1000)
    assert known(some, lengths, positions).all()
    changed = some.copy()
    changed[np.arange(1000), positions] = 5000
    assert not known(changed, lengths, positions).any()
