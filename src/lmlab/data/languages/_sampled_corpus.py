"""Corpus sampled from a generated language: independent samples for each split."""

from __future__ import annotations

import hashlib
import zlib
from typing import Protocol

import numpy as np

from lmlab.core.errors import UserError
from lmlab.data.corpus import SPLITS, Corpus, Split
from lmlab.data.truth import TruthWithLength

TRAIN_SENTENCES = 4_000
"""Default training size: models learn these languages from it within a minute."""
HELD_OUT_SENTENCES = 500
"""Size of the validation split, and of the test split."""


class SampledLanguage(TruthWithLength, Protocol):
    """A true distribution that can be sampled."""

    def sample(self, generator: np.random.Generator) -> str:
        """Sample one text."""
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
    """Sample train, validation and test from the true distribution, with separate random streams.

    Samples are independent, so a likely text occurs in several splits; this makes the mean
    surprisal of a held-out split an unbiased estimate of the cross-entropy, whose minimum is the
    entropy.
    """
    if sentences < 1 or seed < 0:
        raise UserError(
            f"{name} needs at least 1 sentence and a seed of 0 or more, got {sentences} and {seed}."
        )
    sizes = {"train": sentences, "validation": HELD_OUT_SENTENCES, "test": HELD_OUT_SENTENCES}
    splits = {
        split: _drawn_split(name, split, truth, size=sizes[split], seed=seed) for split in SPLITS
    }
    return Corpus(
        name=name,
        splits=splits,
        tokenizer=tokenizer,
        # The vocabulary covers all splits: unknown words would distort the regret.
        vocabulary_from=tuple(splits),
        truth=truth,
        description=description,
    )


def _drawn_split(name: str, split: str, truth: SampledLanguage, *, size: int, seed: int) -> Split:
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(f"{name}/{split}".encode())]))
    texts = [truth.sample(generator) for _ in range(size)]
    # Identity by content, so that no cache outlives a change of the language.
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
    return Split.from_list(texts, identity=f"{name}:{digest}", name=split)
