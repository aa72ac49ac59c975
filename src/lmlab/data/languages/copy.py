"""Copy task: letters, a bar, the same letters again; the second half is deterministic.

The entropy is all in the first half: H = log(number of lengths) + E[length] log(letters). A model
without memory pays for the letters twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, sampled_corpus

DESCRIPTION = "random letters, a bar, the same letters again: exact memory"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BAR = "|"


@dataclass(frozen=True, kw_only=True)
class CopyTruth:
    """Uniform over lengths from `min_length` to `max_length`, then over strings of that length."""

    letters: int
    min_length: int
    max_length: int

    def __post_init__(self) -> None:
        if not 1 <= self.letters <= len(LETTERS):
            raise UserError(
                f"letters of copy must be from 1 to {len(LETTERS)}, got {self.letters}."
            )
        if not 1 <= self.min_length <= self.max_length:
            raise UserError(
                f"copy needs 1 <= min_length <= max_length, got {self.min_length} and "
                f"{self.max_length}."
            )

    @property
    def entropy(self) -> float:
        """Nats per text."""
        mean = (self.min_length + self.max_length) / 2
        return math.log(self.max_length - self.min_length + 1) + mean * math.log(self.letters)

    @property
    def expected_tokens(self) -> float:
        """The letters twice, the bar and the end token."""
        return self.min_length + self.max_length + 2.0

    def log_prob(self, text: str) -> float:
        """The true log-probability in nats, -inf unless the text is letters, bar, same letters."""
        words = text.split(" ")
        length = (len(words) - 1) // 2
        known = set(LETTERS[: self.letters])
        if (
            not self.min_length <= length <= self.max_length
            or words != [*words[:length], BAR, *words[:length]]
            or not known.issuperset(words[:length])
        ):
            return -math.inf
        lengths = self.max_length - self.min_length + 1
        return -math.log(lengths) - length * math.log(self.letters)

    def sample(self, generator: np.random.Generator) -> str:
        """Sample a length and the letters, and repeat them."""
        length = int(generator.integers(self.min_length, self.max_length + 1))
        letters = [LETTERS[index] for index in generator.integers(self.letters, size=length)]
        return " ".join([*letters, BAR, *letters])


def corpus(
    seed: int = 0,
    *,
    letters: int = 8,
    min_length: int = 2,
    max_length: int = 6,
    sentences: int = TRAIN_SENTENCES,
) -> Corpus:
    """Independent samples; longer strings need longer memory."""
    truth = CopyTruth(letters=letters, min_length=min_length, max_length=max_length)
    return sampled_corpus(
        "copy", truth, description=DESCRIPTION, tokenizer="word", sentences=sentences, seed=seed
    )
