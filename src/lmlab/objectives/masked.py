"""Masked tokens: hide some, and predict them from all that is left (Devlin et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.filling import FillingObjective
from lmlab.core.view import NO_TARGET, View
from lmlab.core.visibility import Full
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking import Choice, Replacement, ordinary_places


class MaskedTokens(FillingObjective):
    """-Σ_{t hidden} log p(s_t | what is shown): `choice` says which, `replacement` what is shown.

    The whole text is fed, <s> and </s> with it, and every place sees every other.
    """

    def __init__(self, vocabulary: Vocabulary, choice: Choice, replacement: Replacement) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.choice = choice
        self.replacement = replacement

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        allowed = ordinary_places(batch, self.vocabulary)
        chosen = self.choice(batch, allowed, generator=generator)
        shown = self.replacement(batch.tokens, chosen, generator=generator)
        return masked_view(batch, shown, chosen)

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        assert self.vocabulary.mask is not None
        shown = batch.tokens.masked_fill(masked, self.vocabulary.mask)
        return masked_view(batch, shown, masked)


def masked_view(batch: Batch, shown: Tensor, hidden: Tensor) -> View:
    """`shown` (B, T) fed, and the clean tokens asked at the places that are `hidden` (B, T)."""
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=shown,
        lengths=batch.lengths,
        visibility=Full(),
        targets=batch.tokens.masked_fill(~hidden, NO_TARGET),
        origins=place.expand_as(batch.tokens).masked_fill(~hidden, -1),
    )
