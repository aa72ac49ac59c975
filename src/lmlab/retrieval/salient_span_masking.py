"""Words that need knowledge to be told: salient masks (Guu et al. 2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.layers.per_example_rng import numbers
from lmlab.objectives.masking.mention_units import Mentions
from lmlab.objectives.masking.token_masking import (
    at_least_one,
    first_places,
)
from lmlab.retrieval.documents import Documents

BETWEEN_NAMES = " , "
"""What stands between the names in a title."""
COMMON = 0.01
"""A word that a larger share of the documents has is no name, though it be the title of one: `in`
is indium."""


def names_in_titles(documents: Documents) -> Sequence[str]:
    """What the documents are about, by their titles, without words that come everywhere."""
    having = Counter(word for document in documents for word in set(document.text.split()))
    most = max(1, COMMON * len(documents))
    names = dict.fromkeys(
        name for document in documents for name in document.title.split(BETWEEN_NAMES) if name
    )
    return tuple(name for name in names if having[name] <= most)


@dataclass(frozen=True)
class SalientUnits:
    """Names of a lexicon, each hidden with probability `rate`, and at least one; whole.

    REALM hides named entities and dates, which a tagger finds; here names are those of a lexicon.
    In a text without any it is words.
    """

    mentions: Mentions
    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        starts = self.mentions.starts(batch, allowed) | ~allowed
        named = self.mentions.covering(batch, allowed) >= 0
        eligible = torch.where(named.any(1, keepdim=True), named, allowed)
        drawn = numbers(allowed.shape, allowed.device, generator=generator)
        drawn = drawn.gather(1, first_places(starts)).masked_fill(~eligible, 2.0)
        return at_least_one(drawn, drawn < self.rate, eligible)
