"""Echoes: two words, a pause of one to three words, and the two words again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lmlab.data.corpus import SPLITS, Corpus, Split

DESCRIPTION = "two words, a pause, and the two words again"

WORDS = ("north", "south", "east", "west", "up", "down")
SIZES = {"train": 2_000, "validation": 200, "test": 200}


def texts(split: str, seed: int) -> Iterator[str]:
    """The texts of a split, the same for the same seed."""
    generator = random.Random(f"{split} {seed}")
    for _ in range(SIZES[split]):
        call = generator.choices(WORDS, k=2)
        yield " ".join([*call, *["…"] * generator.randint(1, 3), *call])


def corpus(seed: int = 0) -> Corpus:
    """The corpus; another seed samples other texts."""
    splits = {
        name: Split.from_list(texts(name, seed), identity=f"echoes 1, {name} {seed}", name=name)
        for name in SPLITS
    }
    return Corpus(name="echoes", splits=splits, description=DESCRIPTION)
