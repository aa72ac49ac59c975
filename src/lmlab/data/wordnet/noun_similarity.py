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
    for distance, candidates in sorted(by_distance.items()):
        chosen = generator.permutation(len(candidates))[:PER_DISTANCE]
        for index in sorted(chosen):
            first, second = candidates[index]
            pair = SimilarityPair(first=first, second=second, similarity=1 / (1 + distance))
            pairs.append(pair)
    return tuple(pairs)


def _frequent(wordnet: WordNet) -> dict[str, str]:
    """The most frequent single-word nouns, each with the synset of its most frequent sense."""
    counts: dict[str, dict[str, int]] = {}
    for name, senses in wordnet.senses("n"):
        for sense in senses:
            if sense.lemma.isalpha() and sense.lemma.islower():
                counts.setdefault(sense.lemma, {})[name] = sense.count
    dominant = {
        word: (sum(sense_counts.values()), max(sense_counts, key=sense_counts.__getitem__))
        for word, sense_counts in counts.items()
        if 2 * max(sense_counts.values()) >= sum(sense_counts.values()) > 0
    }
    ordered = sorted(dominant, key=lambda word: (-dominant[word][0], word))
    return {word: dominant[word][1] for word in ordered[:NOUN_COUNT]}


def _ancestors(wordnet: WordNet, name: str) -> dict[str, int]:
    """All hypernym ancestors of a synset, itself included, with their distances."""
    steps, frontier = {name: 0}, [name]
    while frontier:
        parents = []
        for current in frontier:
            synset = wordnet[current]
            for parent in synset.related("hypernym") + synset.related("instance hypernym"):
                if parent not in steps:
                    steps[parent] = steps[current] + 1
                    parents.append(parent)
        frontier = parents
    return steps


def _distance(first: Mapping[str, int], second: Mapping[str, int]) -> int:
    """Shortest path between two synsets through a common ancestor; all nouns share the root."""
    return min(first[shared] + second[shared] for shared in first.keys() & second.keys())
