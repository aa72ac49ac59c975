"""Which texts and n-grams a corpus holds: all are found, others hardly ever, in few bytes."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.data import membership
from lmlab.data.membership import HashSet, NgramSet, TextSet, splitmix64, text_hashes

TEXTS = [[2, 5, 6, 3], [2, 6, 5, 3], [2, 5, 3], [2, 5, 6, 7, 3], [2, 3]]


def flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for text in texts for token in text], dtype=np.uint16)
    return tokens, np.concatenate([[0], np.cumsum([len(text) for text in texts])])


def padded(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(text) for text in texts])
    tokens = np.zeros((len(texts), lengths.max()), dtype=np.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    return tokens, lengths


def test_texts_of_the_corpus_are_known_and_their_like_are_not():
    known = TextSet(*flat(TEXTS))
    others = [[2, 6, 6, 3], [2, 5, 6], [2, 5, 6, 3, 3], [2, 5, 5, 7, 3], [2, 6, 3]]
    tokens, lengths = padded(TEXTS + others)
    found = known(tokens, lengths, np.ones(len(tokens), dtype=np.int64))
    assert found.tolist() == [True] * len(TEXTS) + [False] * len(others)


def test_padding_is_no_part_of_a_text():
    known = TextSet(*flat(TEXTS))
    tokens, lengths = padded(TEXTS)
    wider = np.full((len(TEXTS), 9), 9, dtype=np.int64)
    wider[:, : tokens.shape[1]] = np.where(tokens == 0, 9, tokens)
    assert known(wider, lengths, np.ones(len(TEXTS), dtype=np.int64)).all()


def test_a_change_is_known_by_the_grams_that_cover_its_place():
    """Of 2 5 6 8 3 all bigrams but (6, 8) and (8, 3) are in the corpus."""
    known = NgramSet(*flat(TEXTS), size=2)
    tokens, lengths = padded([[2, 5, 6, 8, 3]] * 5)
    places = np.arange(5)
    # Place 2 is covered by (5, 6) and (6, 8), place 1 by (2, 5) and (5, 6), place 0 by (2, 5).
    assert known(tokens, lengths, places).tolist() == [True, True, False, False, False]


def test_a_gram_does_not_reach_over_the_end_of_a_text():
    """(3, 2) stands in the flat ids wherever one text follows another."""
    known = NgramSet(*flat(TEXTS), size=2)
    tokens, lengths = padded([[3, 2], [2, 5]])
    assert known(tokens, lengths, np.zeros(2, dtype=np.int64)).tolist() == [False, True]


def test_what_is_shorter_than_a_gram_is_not_known():
    known = NgramSet(*flat(TEXTS), size=4)
    assert not known(*padded([[2, 5, 3]]), np.array([1])).any()


def test_hashing_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """Texts that reach over the end of a piece too."""
    whole, grams = text_hashes(*flat(TEXTS)), NgramSet(*flat(TEXTS), size=3).hashes
    monkeypatch.setattr(membership, "TOKENS_AT_ONCE", 3)
    assert (text_hashes(*flat(TEXTS)) == whole).all()
    assert len(NgramSet(*flat(TEXTS), size=3).hashes) == len(grams)


def test_an_empty_set_holds_nothing():
    assert (
        not HashSet(np.zeros(0, np.uint64))
        .contains(splitmix64(np.arange(3, dtype=np.uint64)))
        .any()
    )


@pytest.mark.parametrize(("bits", "most_bytes"), [(32, 4.6), (16, 2.6)])
def test_a_million_entries_take_few_bytes_and_mistakes_are_as_rare_as_said(bits, most_bytes):
    """A bucket has n / 2^b entries, so an absent hash is found one time in 2^(b + bits) / n."""
    size = 1_000_000
    held = HashSet(splitmix64(np.arange(size, dtype=np.uint64)), bits=bits)
    assert len(held) == size
    assert held.bytes / size < most_bytes
    assert held.contains(splitmix64(np.arange(0, size, 7, dtype=np.uint64))).all()
    absent = splitmix64(np.arange(size, 2 * size, dtype=np.uint64))
    wrong = int(held.contains(absent).sum())
    # 2^16 buckets: the largest power of two with 8 entries a bucket or more.
    expected = len(absent) * size / 2.0 ** (16 + bits)
    assert abs(wrong - expected) < 5 * np.sqrt(expected) + 1


def test_all_grams_of_a_corpus():
    """A million tokens in texts of twenty: every 5-gram is found, and no other of a thousand."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 5000, 1_000_000).astype(np.uint16)
    offsets = np.arange(0, len(tokens) + 1, 20)
    known = NgramSet(tokens, offsets, size=5)
    assert len(known.hashes) == pytest.approx(50_000 * 16, rel=1e-3)  # 16 in each, hardly any twice
    assert known.hashes.bytes / len(known.hashes) < 4.6
    some = tokens[: 20 * 1000].reshape(1000, 20).astype(np.int64)
    lengths, places = np.full(1000, 20), generator.integers(1, 19, 1000)
    assert known(some, lengths, places).all()
    changed = some.copy()
    changed[np.arange(1000), places] = 5000
    assert not known(changed, lengths, places).any()
