"""Words that need knowledge to be told: salient masks (Guu et al. 2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    ensure_one_masked,
    run_starts,
)
from lmlab.retrieval.documents import Documents

TITLE_NAME_SEPARATOR = " , "
"""What stands between the names in a title."""
MAX_DOCUMENT_FREQUENCY = 0.01
"""A word that a larger share of the documents has is no name, though it be the title of one: `in`
is indium."""


def title_names(documents: Documents) -> Sequence[str]:
    """What the documents are about, by their titles, without words that come everywhere."""
    having = Counter(word for document in documents for word in set(document.text.split()))
    most = max(1, MAX_DOCUMENT_FREQUENCY * len(documents))
    names = dict.fromkeys(
        name
        for document in documents
        for name in document.title.split(TITLE_NAME_SEPARATOR)
        if name
    )
    return tuple(name for name in names if having[name] <= most)


@dataclass(frozen=True)
class SalientSpanMasking:
    """Names of a lexicon, each hidden with probability `rate`, and at least one; whole.

    REALM hides named entities and dates, which a tagger finds; here names are those of a lexicon.
    In a text without any it is words.
    """

    mentions: MentionUnits
    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        starts = self.mentions.starts(batch, allowed) | ~allowed
        named = self.mentions.mention_ids(batch, allowed) >= 0
        eligible = torch.where(named.any(1, keepdim=True), named, allowed)
        drawn = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        drawn = drawn.gather(1, run_starts(starts)).masked_fill(~eligible, 2.0)
        return ensure_one_masked(drawn, drawn < self.rate, eligible)
