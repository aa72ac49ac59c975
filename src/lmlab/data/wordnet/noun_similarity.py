"""Word similarity benchmark: noun pairs with WordNet path similarity, to test word vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from lmlab.data.wordnet.database import WordNet, load_wordnet

NOUN_COUNT = 600
"""Number of nouns in the pairs: the most frequent in sense-tagged text."""
PER_DISTANCE = 100
"""Pairs per distance."""
MAX_PATH = 12
"""Path length at which distances are clipped."""


@dataclass(frozen=True, kw_only=True)
class SimilarityPair:
    """Two words and their similarity, by human judgement or a taxonomy; only the ranking counts."""

    first: str
    second: str
    similarity: float


@cache
def similar_nouns(*, seed: int = 0) -> tuple[SimilarityPair, ...]:
    """About a thousand pairs of frequent nouns with their path similarity in WordNet.

        similarity = 1 / (1 + d),   d = shortest hypernym path between the two

    Each noun stands for its most frequent sense; only nouns whose most frequent sense has at least
    half of their tagged occurrences are used, as one vector represents all senses. Up to
    `PER_DISTANCE` pairs are sampled per distance, so that distant pairs do not dominate.
    Deterministic given the seed.
    """
    wordnet = load_wordnet()
    ancestors = {word: _ancestors(wordnet, sense) for word, sense in _frequent(wordnet).items()}
    by_distance: dict[int, list[tuple[str, str]]] = {}
    for first, second in combinations(sorted(ancestors), 2):
        distance = _distance(ancestors[first], ancestors[second])
        by_distance.setdefault(min(distance, MAX_PATH), []).append((first, second))
    generator, pairs = np.random.default_rng(seed), []
    for distance, found in sorted(by_distance.items()):
        chosen = generator.permutation(len(found))[:PER_DISTANCE]
        for index in sorted(chosen):
            first, second = found[index]
            similar = SimilarityPair(first=first, second=second, similarity=1 / (1 + distance))
            pairs.append(similar)
    return tuple(pairs)


def _frequent(wordnet: WordNet) -> dict[str, str]:
    """The most frequent single-word nouns, each with the synset of its most frequent sense."""
    counts: dict[str, dict[str, int]] = {}
    for name, senses in wordnet.senses("n"):
        for sense in senses:
            if sense.lemma.isalpha() and sense.lemma.islower():
                counts.setdefault(sense.lemma, {})[name] = sense.count
    clear = {
        word: (sum(each.values()), max(each, key=each.__getitem__))
        for word, each in counts.items()
        if 2 * max(each.values()) >= sum(each.values()) > 0
    }
    ordered = sorted(clear, key=lambda word: (-clear[word][0], word))
    return {word: clear[word][1] for word in ordered[:NOUN_COUNT]}


def _ancestors(wordnet: WordNet, name: str) -> dict[str, int]:
    """All hypernym ancestors of a synset, itself included, with their distances."""
    steps, edge = {name: 0}, [name]
    while edge:
        above = []
        for each in edge:
            synset = wordnet[each]
            for parent in synset.related("hypernym") + synset.related("instance hypernym"):
                if parent not in steps:
                    steps[parent] = steps[each] + 1
                    above.append(parent)
        edge = above
    return steps


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    """Shortest path between two synsets through a common ancestor; all nouns share the root."""
    return min(one[shared] + other[shared] for shared in one.keys() & other.keys())
