"""Masked span: a stretch of a text is hidden from the encoder, and the decoder writes it (MASS)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import (
    CausalMask,
    FullMask,
)
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.denoising_base import (
    DenoisingObjective,
    DenoisingSpecialTokens,
)
from lmlab.objectives.masking.token_masking import MaskReplacement
from lmlab.objectives.text_to_text import text_positions


@dataclass(frozen=True, kw_only=True)
class ContiguousSpan:
    """A stretch of a `share` of a text, at least one token, or of `tokens`; any start alike."""

    span_share: float = 0.5
    tokens: int = 0

    def __call__(self, count: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The first place, from 1, and the size of the span of texts with `count` (B,) tokens."""
        size = torch.round(count.double() * self.span_share).long().clamp(min=1)
        size = torch.full_like(count, self.tokens) if self.tokens else size
        size = torch.minimum(size, count)
        starts = count - size + 1
        drawn = sample_uniform((len(count),), count.device, generator=generator)
        return 1 + torch.minimum((drawn * starts).long(), starts - 1), size


class MASSObjective(DenoisingObjective):
    """-Σ_{t=u}^{v} log p(s_t | s_u … s_{t-1}, text with s_u … s_v masked) (Song et al. 2019).

    `span` draws the K = v - u + 1 tokens. The encoder sees as many masks, by `replacement` a random
    token or the token itself here and there. The decoder is fed the span alone, each token where it
    stands in the text: what the encoder sees is hidden from it, so that its first input is a mask,
    or the start symbol where the span begins the text. With K = 1 it has no input of its own
    (BERT); with K = n it has all of them, and the encoder tells the length at most (a language
    model).

    Its log_prob is not given the length: the encoder sees one mask and the decoder writes all of
    the text and its end, which sums to one over texts. A share `whole` of the texts is shown so in
    training; the paper has none, and then the end is never learned. A text that is given another is
    written beside it.
    """

    def __init__(
        self,
        spelling: DenoisingSpecialTokens,
        span: ContiguousSpan,
        replacement: MaskReplacement,
        *,
        whole: float = 0.0,
    ) -> None:
        super().__init__(spelling)
        self.span = span
        self.replacement = replacement
        self.full_mask_rate = whole

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None:
            return self.conditional_view(batch)
        device, width = batch.tokens.device, batch.tokens.shape[1]
        whole = sample_uniform((len(batch),), device, generator=generator) < self.full_mask_rate
        count = text_positions(batch, self.vocabulary.end).sum(1)
        first, size = self.span(count, generator)
        place = torch.arange(width, device=device)
        hidden = (place >= first[:, None]) & (place < (first + size)[:, None])
        shown = self.replacement(batch.tokens, hidden, generator=generator)
        nothing = self.source_view(None, len(batch), device)
        more = nothing.inputs.shape[1] - width
        return View(
            inputs=torch.where(
                whole[:, None],
                F.pad(nothing.inputs, (0, max(-more, 0)), value=self.vocabulary.pad),
                F.pad(shown, (0, max(more, 0)), value=self.vocabulary.pad),
            ),
            lengths=torch.where(whole, nothing.lengths, batch.lengths),
            attention_mask=FullMask(),
            decoder=self.span_view(
                batch,
                first.masked_fill(whole, 1),
                torch.where(whole, (batch.lengths - 1).clamp(min=0), size),
            ),
        )

    def fill_view(self, batch: Batch, masked: Tensor, first: Tensor, size: Tensor) -> View:
        """Encoder: the text with all of `masked` (B, T) behind masks; decoder: the span's tokens.

        As in training, the decoder's input before token t of the span is token t - 1 of the batch.
        """
        return View(
            inputs=batch.tokens.masked_fill(masked, self.special_tokens.mask),
            lengths=batch.lengths,
            attention_mask=FullMask(),
            decoder=self.span_view(batch, first, size),
        )

    def span_view(self, batch: Batch, first: Tensor, size: Tensor) -> View:
        """The decoder's view of `size` (B,) tokens from place `first` (B,) on, and no others."""
        turn = torch.arange(max(int(size.max()), 1), device=first.device)
        beyond = turn >= size[:, None]
        place = (first[:, None] + turn).masked_fill(beyond, 1)
        place = place.clamp(max=batch.tokens.shape[1] - 1)
        before = batch.tokens.gather(1, (place - 1).clamp(min=0))
        unseen = (turn == 0) & (first[:, None] > 1)
        return View(
            inputs=before.masked_fill(unseen, self.special_tokens.mask),
            lengths=size,
            attention_mask=CausalMask(),
            positions=(place - 1).clamp(min=0),
            targets=batch.tokens.gather(1, place).masked_fill(beyond, NO_TARGET),
            clean_positions=place.masked_fill(beyond, -1),
        )
