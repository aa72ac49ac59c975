"""k-hop task (pointer chasing): a ring of letters given as pairs, then a start and a hop count.

    c a b c a b ? ? b a          (c→a, b→c, a→b; two hops from b: b→c→a)

Each pair gives a letter and its successor on one ring; there are as many question marks as hops.
The answer is deterministic, and each hop needs the result of the one before it, so it probes how
the number of hops a Transformer can compose depends on its number of layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, sampled_corpus

DESCRIPTION = "a ring of letters given in pairs, then where k hops lead: relations of relations"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
QUESTION = "?"


@dataclass(frozen=True, kw_only=True)
class HopsTruth:
    """Uniform over rings, order of the pairs, 1 to `hops` hops, and starts."""

    letters: int
    hops: int

    def __post_init__(self) -> None:
        if not 2 <= self.letters <= len(LETTERS) or not 1 <= self.hops < self.letters:
            raise UserError(
                f"hops needs 2 to {len(LETTERS)} letters and 1 <= hops < letters, got "
                f"{self.letters} letters and {self.hops} hops."
            )

    @property
    def entropy(self) -> float:
        """Nats per text: log (n-1)! rings, log n! orders, log n starts, log of the hops."""
        n = self.letters
        return math.lgamma(n) + math.lgamma(n + 1) + math.log(n) + math.log(self.hops)

    @property
    def expected_tokens(self) -> float:
        """Two per pair, the question marks, the start, the answer and the end token."""
        return 2 * self.letters + (1 + self.hops) / 2 + 3.0

    def log_prob(self, text: str) -> float:
        """The true log-probability in nats, -inf for a text outside the language."""
        words = text.split(" ")
        pairs, query = words[: 2 * self.letters], words[2 * self.letters :]
        after = dict(zip(pairs[::2], pairs[1::2], strict=False))
        hops = query.count(QUESTION)
        if not 1 <= hops <= self.hops or len(query) != hops + 2 or query[:hops] != ["?"] * hops:
            return -math.inf
        if not self._is_ring(after) or query[hops] not in after:
            return -math.inf
        return -self.entropy if follow_ring(after, query[hops], hops) == query[-1] else -math.inf

    def sample(self, generator: np.random.Generator) -> str:
        """Sample the ring, the order of its pairs, the hops and the start."""
        ring = [LETTERS[index] for index in generator.permutation(self.letters)]
        after = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
        order = [ring[index] for index in generator.permutation(self.letters)]
        pairs = [word for letter in order for word in (letter, after[letter])]
        hops, start = int(generator.integers(1, self.hops + 1)), ring[0]
        return " ".join([*pairs, *[QUESTION] * hops, start, follow_ring(after, start, hops)])

    def _is_ring(self, after: dict[str, str]) -> bool:
        """Whether the pairs form a single cycle through all letters."""
        if set(after) != set(LETTERS[: self.letters]) or set(after.values()) != set(after):
            return False
        start = next(iter(after))
        return all(follow_ring(after, start, hops) != start for hops in range(1, self.letters))


def follow_ring(after: dict[str, str], letter: str, hops: int) -> str:
    """The letter reached after so many hops."""
    for _ in range(hops):
        letter = after[letter]
    return letter


def corpus(
    seed: int = 0, *, letters: int = 5, hops: int = 3, sentences: int = TRAIN_SENTENCES
) -> Corpus:
    """Independent samples; with more letters each hop is harder to guess."""
    truth = HopsTruth(letters=letters, hops=hops)
    return sampled_corpus(
        "hops", truth, description=DESCRIPTION, tokenizer="word", sentences=sentences, seed=seed
    )
