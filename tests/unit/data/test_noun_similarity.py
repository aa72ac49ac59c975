"""Noun similarity: path similarity of noun pairs in WordNet."""

from __future__ import annotations

from collections import Counter

from lmlab.data.wordnet.noun_similarity import MAX_PATH, PER_DISTANCE, similar_nouns


def test_noun_pairs_have_wordnet_path_similarity():
    """girl is a woman: one step, 1/2. At most PER_DISTANCE pairs have the same distance."""
    pairs = similar_nouns()
    by_words = {(pair.first, pair.second): pair.similarity for pair in pairs}
    assert len(by_words) == len(pairs) > 1000
    assert by_words["girl", "woman"] == 1 / 2
    distances = Counter(round(1 / pair.similarity) - 1 for pair in pairs)
    assert max(distances) == MAX_PATH and max(distances.values()) == PER_DISTANCE
    assert all(pair.first < pair.second for pair in pairs)
