"""From a language to a corpus: independent draws for each split."""

from __future__ import annotations

import hashlib
import zlib
from typing import Protocol

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import SPLITS, Corpus, Split
from lmlab.data.truth import TruthWithLength

TRAIN_SENTENCES = 4_000
"""Sentences to train on, by default: models learn these languages from so many within a minute."""
HELD_OUT_SENTENCES = 500
"""Sentences of the validation split, and of the test split."""


class SampledLanguage(TruthWithLength, Protocol):
    """A truth that can be drawn from."""

    def sample(self, generator: np.random.Generator) -> str:
        """Draw one text."""
        ...


def sampled_corpus(
    name: str,
    truth: SampledLanguage,
    *,
    description: str,
    tokenizer: str,
    sentences: int,
    seed: int,
) -> Corpus:
    """Train, validation and test drawn from the truth, each by a random stream of its own.

    The draws are independent, so a text that is likely comes in several splits: that is what makes
    the mean surprise of a held-out split an honest estimate, whose floor is the entropy.
    """
    if sentences < 1 or seed < 0:
        raise UserError(
            f"{name} needs at least 1 sentence and a seed of 0 or more, not {sentences} and {seed}."
        )
    sizes = {"train": sentences, "validation": HELD_OUT_SENTENCES, "test": HELD_OUT_SENTENCES}
    splits = {
        split: _drawn_split(name, split, truth, size=sizes[split], seed=seed) for split in SPLITS
    }
    return Corpus(
        name=name,
        splits=splits,
        tokenizer=tokenizer,
        # The words of a language are part of it: an unknown one would spoil the regret.
        vocabulary_from=tuple(splits),
        truth=truth,
        description=description,
    )


def _drawn_split(name: str, split: str, truth: SampledLanguage, *, size: int, seed: int) -> Split:
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(f"{name}/{split}".encode())]))
    texts = [truth.sample(generator) for _ in range(size)]
    # The texts are their own identity: a cache never outlives a change of the language.
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
    return Split.from_list(texts, identity=f"{name}:{digest}", name=split)
