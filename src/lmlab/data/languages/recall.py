"""Associative recall: key-value pairs, then one of the keys again and its value.

    c 3 a 1 f 3 ? a 1

After the query the value is deterministic; its distance is controlled by the number of pairs, by
which of them may be queried, and by a gap of dots before the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, sampled_corpus

DESCRIPTION = "keys with values, then a key again and its value: associative memory"

KEYS = "abcdefghijklmnopqrstuvwxyz"
QUESTION = "?"
DOT = "."


@dataclass(frozen=True, kw_only=True)
class RecallTruth:
    """Uniform over the number of pairs n, then over distinct keys, values and the query.

    The queried pair is uniform among those followed by `min_distance` to `max_distance` pairs, as
    far as there are so many.
    """

    keys: int
    values: int
    min_pairs: int
    max_pairs: int
    min_distance: int
    max_distance: int | None
    gap: int

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= len(KEYS) or self.values < 1 or self.gap < 0:
            raise UserError(
                f"recall needs 1 to {len(KEYS)} keys, at least 1 value and a gap of 0 or more, "
                f"got {self.keys}, {self.values} and {self.gap}."
            )
        if not 1 <= self.min_pairs <= self.max_pairs <= self.keys:
            raise UserError(
                "recall needs 1 <= min_pairs <= max_pairs <= keys, as keys are distinct, got "
                f"{self.min_pairs}, {self.max_pairs} and {self.keys}."
            )
        if not 0 <= self.min_distance < self.min_pairs or self._max_distance < self.min_distance:
            raise UserError(
                "recall needs 0 <= min_distance < min_pairs and min_distance <= max_distance, "
                f"got min_distance {self.min_distance}, max_distance {self.max_distance} and "
                f"min_pairs {self.min_pairs}."
            )

    @property
    def _max_distance(self) -> int:
        return self.max_pairs - 1 if self.max_distance is None else self.max_distance

    def _queryable(self, pairs: int) -> int:
        """How many of so many pairs may be queried."""
        return min(self._max_distance, pairs - 1) - self.min_distance + 1

    def _surprisal(self, pairs: int) -> float:
        """Surprisal -log p of any text with so many pairs: all are equally likely."""
        return (
            math.log(self.max_pairs - self.min_pairs + 1)
            + math.log(math.perm(self.keys, pairs))
            + pairs * math.log(self.values)
            + math.log(self._queryable(pairs))
        )

    @property
    def entropy(self) -> float:
        """Nats per text: the mean surprisal over the number of pairs."""
        counts = range(self.min_pairs, self.max_pairs + 1)
        return math.fsum(self._surprisal(pairs) for pairs in counts) / len(counts)

    @property
    def expected_tokens(self) -> float:
        """Two per pair, the gap, the question mark, key and value again, and the end token."""
        return self.min_pairs + self.max_pairs + self.gap + 4.0

    def log_prob(self, text: str) -> float:
        """The true log-probability in nats, -inf for a text outside the language."""
        words = text.split(" ")
        pairs = (len(words) - self.gap - 3) // 2
        if not self.min_pairs <= pairs <= self.max_pairs:
            return -math.inf
        keys, values = words[: 2 * pairs : 2], words[1 : 2 * pairs : 2]
        if not self._are_known(keys, values):
            return -math.inf
        last = pairs - 1 - self.min_distance
        possible = {self._text(keys, values, last - i) for i in range(self._queryable(pairs))}
        return -self._surprisal(pairs) if text in possible else -math.inf

    def sample(self, generator: np.random.Generator) -> str:
        """Sample the number of pairs, the keys, the values and the query."""
        pairs = int(generator.integers(self.min_pairs, self.max_pairs + 1))
        keys = [KEYS[index] for index in generator.permutation(self.keys)[:pairs]]
        values = [str(value) for value in generator.integers(self.values, size=pairs)]
        distance = self.min_distance + int(generator.integers(self._queryable(pairs)))
        return self._text(keys, values, pairs - 1 - distance)

    def _are_known(self, keys: list[str], values: list[str]) -> bool:
        return (
            len(set(keys)) == len(keys)
            and set(KEYS[: self.keys]).issuperset(keys)
            and {str(value) for value in range(self.values)}.issuperset(values)
        )

    def _text(self, keys: list[str], values: list[str], query: int) -> str:
        pairs = [word for pair in zip(keys, values, strict=True) for word in pair]
        return " ".join([*pairs, *[DOT] * self.gap, QUESTION, keys[query], values[query]])


def corpus(
    seed: int = 0,
    *,
    keys: int = 6,
    values: int = 4,
    min_pairs: int = 2,
    max_pairs: int = 3,
    min_distance: int = 0,
    max_distance: int | None = None,
    gap: int = 0,
    sentences: int = TRAIN_SENTENCES,
) -> Corpus:
    """Independent samples; distances are in pairs, `gap` is in words.

    The defaults are what an LSTM of width 128 begins to learn within a minute; with eight keys,
    eight values and four pairs it memorises the sentences before it learns to recall.
    """
    truth = RecallTruth(
        keys=keys,
        values=values,
        min_pairs=min_pairs,
        max_pairs=max_pairs,
        min_distance=min_distance,
        max_distance=max_distance,
        gap=gap,
    )
    return sampled_corpus(
        "recall", truth, description=DESCRIPTION, tokenizer="word", sentences=sentences, seed=seed
    )
