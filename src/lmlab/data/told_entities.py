"""The entities that a corpus itself names, where no knowledge gives them numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from lmlab.data.corpus import Corpus


@dataclass(frozen=True)
class ToldEntities:
    """Entities by their names alone, numbered in the order of the alphabet."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]

    def fingerprint(self) -> str:
        return hashlib.blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()


def told_entities(corpus: Corpus) -> ToldEntities | None:
    """What the texts of all splits tell that they mention; None where they tell nothing.

    It takes a pass over the corpus, in memory for the names.
    """
    told = {m.entity for split in corpus.splits.values() for each in split for m in each.mentions}
    names = tuple(sorted(told))
    return ToldEntities(names, {name: i for i, name in enumerate(names)}) if names else None
