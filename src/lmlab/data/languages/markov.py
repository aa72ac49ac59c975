"""Markov chain over ten words with an end state, flat to peaked transitions, exact entropy.

p(w₁ … w_T) = π(w₁) Π Q(w_t, w_{t+1}) e(w_T), with Q(w, ·) and e(w) together a distribution.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

import numpy as np

from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, sampled_corpus

DESCRIPTION = "a Markov chain over ten words, with peaked and flat rows"

WORDS = ("ka", "lo", "mi", "nu", "pe", "ra", "so", "ti", "vu", "ze")


class MarkovTruth:
    """The distribution over (non-empty) sentences of an absorbing Markov chain.

    From the expected visits n = (I - Qᵀ)⁻¹ π follow the entropy H(π) + Σ_w n(w) H(row w) and the
    expected length Σ_w n(w), plus one for the end.
    """

    def __init__(self, words: Sequence[str], initial: np.ndarray, steps: np.ndarray) -> None:
        """`initial` is π, (V,); `steps` is Q with e as its last column, (V, V + 1)."""
        assert initial.shape == (len(words),)
        assert steps.shape == (len(words), len(words) + 1)
        assert np.allclose([initial.sum(), *steps.sum(1)], 1)
        self.words = tuple(words)
        self.initial, self.steps = initial, steps
        self._index = {word: row for row, word in enumerate(words)}
        self._cumulative = [_cumulative(row) for row in steps]
        self._cumulative_initial = _cumulative(initial)
        inner = np.eye(len(words)) - steps[:, :-1].T
        self.visits: np.ndarray = np.linalg.solve(inner, initial)
        self.entropy = float(_entropy(initial) + self.visits @ _entropy(steps))
        self.expected_tokens = float(self.visits.sum() + 1)

    def log_prob(self, text: str) -> float:
        """The true log-probability of the words and the end, in nats."""
        words = text.split(" ")
        if any(word not in self._index for word in words):
            return -math.inf
        states = np.array([self._index[word] for word in words])
        following = np.append(states[1:], len(self.words))
        with np.errstate(divide="ignore"):  # an impossible transition has log-probability -inf
            return float(
                np.log(self.initial[states[0]]) + np.log(self.steps[states, following]).sum()
            )

    def sample(self, generator: np.random.Generator) -> str:
        """Sample one sentence, word by word until the end."""
        words: list[str] = []
        row = self._cumulative_initial  # it contains no end: sentences are never empty
        while (state := bisect_right(row, generator.random())) < len(self.words):
            words.append(self.words[state])
            row = self._cumulative[state]
        return " ".join(words)


def _entropy(rows: np.ndarray) -> np.ndarray:
    """-Σ p log p over the last axis, with 0 log 0 = 0."""
    entropies: np.ndarray = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(-1)
    return entropies


def _cumulative(row: np.ndarray) -> list[float]:
    """Cumulative probabilities (inverse CDF); rounding must not leave a gap below one."""
    sums = np.cumsum(row)
    sums[sums >= sums[-1]] = 1.0
    return [float(total) for total in sums]


@cache
def truth(*, end: float = 0.2) -> MarkovTruth:
    """Ten words whose transition rows range from flat to peaked.

    From word i, the word at rank r of its own preference order has weight (1 + r)^-s with s from 0
    (flat) to 4 (the first has 0.9). Words end a sentence with probability `end`, except every
    third, which never does.
    """
    size = len(WORDS)
    index = np.arange(size)
    # Row i prefers word 3 i + 1: as 3 and 10 are coprime, each word is the favourite of one row.
    rank = (index[None, :] - 3 * index[:, None] - 1) % size
    sharpness = 4.0 * index / (size - 1)
    weights = (1.0 + rank) ** -sharpness[:, None]
    ends = np.where(index % 3 == 2, 0.0, end)
    inner = weights / weights.sum(1, keepdims=True) * (1 - ends)[:, None]
    initial = (1.0 + index) ** -1.0
    return MarkovTruth(WORDS, initial / initial.sum(), np.column_stack([inner, ends]))


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples from the chain, with its exact entropy."""
    return sampled_corpus(
        "markov", truth(), description=DESCRIPTION, tokenizer="word", sentences=sentences, seed=seed
    )
