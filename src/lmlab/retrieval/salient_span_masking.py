"""Salient span masking (REALM): names masked whole, by a lexicon such as the documents' titles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import ensure_one_masked, run_starts
from lmlab.retrieval.documents import Documents

TITLE_NAME_SEPARATOR = " , "
"""Separator between the names in a title."""
MAX_DOCUMENT_FREQUENCY = 0.01
"""Words with a higher document frequency are no names, even if they are a title: `in` is indium."""


def title_names(documents: Documents) -> Sequence[str]:
    """Names from the documents' titles, without words that occur everywhere."""
    counts = Counter(word for document in documents for word in set(document.text.split()))
    max_documents = max(1, MAX_DOCUMENT_FREQUENCY * len(documents))
    names = dict.fromkeys(
        name
        for document in documents
        for name in document.title.split(TITLE_NAME_SEPARATOR)
        if name
    )
    return tuple(name for name in names if counts[name] <= max_documents)


@dataclass(frozen=True)
class SalientSpanMasking:
    """Lexicon names, each masked whole with probability `rate`, at least one.

    REALM masks named entities and dates found by a tagger; here names come from a lexicon. In a
    text without any, words are masked.
    """

    mentions: MentionUnits
    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        starts = self.mentions.starts(batch, allowed) | ~allowed
        in_mention = self.mentions.mention_ids(batch, allowed) >= 0
        eligible = torch.where(in_mention.any(1, keepdim=True), in_mention, allowed)
        uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        uniforms = uniforms.gather(1, run_starts(starts)).masked_fill(~eligible, 2.0)
        return ensure_one_masked(uniforms, uniforms < self.rate, eligible)
