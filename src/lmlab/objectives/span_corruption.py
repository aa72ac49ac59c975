"""Span corruption (T5): spans are replaced by sentinels, and the decoder generates them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.text_to_text import (
    TextToTextObjective,
    compact_left,
    decoder_view_after,
    text_positions,
)


@dataclass(frozen=True, kw_only=True)
class RandomSpanMasking:
    """Random spans: mask round(rate · n) of n tokens, in exactly round(masked / mean) spans.

    Both are at least one, and one of two or more tokens stays visible (Raffel et al. 2020, §3.1.4
    and 3.3.4, `random_spans_noise_mask` in their code). Span lengths are uniform over all
    partitions of the masked tokens, and so are the gaps between them. `free_placement`: every such
    mask is equally likely. Otherwise as in their code, where a text begins unmasked and ends
    masked: harmless for segments of 512 tokens, but in a short text the end is then always masked.
    """

    rate: float = 0.15
    mean: float = 3.0
    free_placement: bool = True
    max_spans: int | None = None
    """Maximum spans per text, limited by the number of sentinels."""

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, T) bool: the masked positions, a subset of `allowed` (B, T)."""
        size = allowed.sum(1)
        hidden, spans = self.counts(size)
        mask = self._drawn(size, hidden, spans, allowed.shape[1], generator)
        rank = (allowed.cumsum(1) - 1).clamp(min=0)
        return mask.gather(1, rank) & allowed

    def counts(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Number of masked tokens and of spans, for texts of `size` (B,)."""
        hidden = torch.round(size.double() * self.rate).long()
        hidden = torch.minimum(hidden.clamp(min=1), (size - 1).clamp(min=1)).minimum(size)
        spans = torch.round(hidden.double() / self.mean).long().clamp(min=1)
        # Spans are separated, and with T5's placement a visible token precedes the first.
        room = size - hidden + 1 if self.free_placement else (size - hidden).clamp(min=1)
        spans = spans.minimum(hidden).minimum(room)
        return hidden, spans if self.max_spans is None else spans.clamp(max=self.max_spans)

    def _drawn(
        self,
        size: Tensor,
        hidden: Tensor,
        spans: Tensor,
        time: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """(B, T) bool mask over the tokens of each text, counted from 0.

        Visible tokens of gap g get the number 2g, masked ones of span k the number 2k + 1; sorted
        by these numbers they are the text.
        """
        place = torch.arange(time, device=size.device)[None]
        span = _segments(hidden, spans - 1, time, generator)
        stretch = self._stretches(size - hidden, spans, time, generator)
        is_hidden = place < hidden[:, None]
        later = (place - hidden[:, None]).clamp(min=0)
        numbers = torch.where(is_hidden, 2 * span + 1, 2 * stretch.gather(1, later))
        beyond = 2 * time + 2
        ordered = numbers.masked_fill(place >= size[:, None], beyond).sort(1).values
        return (ordered % 2 == 1) & (ordered < beyond)

    def _stretches(
        self, shown: Tensor, spans: Tensor, time: int, generator: torch.Generator | None
    ) -> Tensor:
        """(B, T) the gap between spans that each visible token belongs to."""
        if not self.free_placement:
            return _segments(shown, spans - 1, time, generator)
        # The first and the last gap may be empty: each is lent a token, removed here.
        return _segments(shown + 2, spans, time + 2, generator)[:, 1:-1]


def _segments(size: Tensor, cuts: Tensor, time: int, generator: torch.Generator | None) -> Tensor:
    """(B, T) the segment, from 0, of each of `size` (B,) tokens.

    `cuts` (B,) of the size - 1 boundaries between tokens are sampled uniformly, so no segment is
    empty.
    """
    place = torch.arange(time, device=size.device)[None]
    between = (place >= 1) & (place < size[:, None])
    drawn = sample_uniform((len(size), time), size.device, generator=generator)
    rank = drawn.masked_fill(~between, 2.0).argsort(1).argsort(1)
    return ((rank < cuts[:, None]) & between).cumsum(1)


class SpanCorruption(TextToTextObjective):
    """Span corruption (Raffel et al. 2020): generate the spans replaced by sentinels.

        Thank you ⟨X⟩ me to your party ⟨Y⟩ week → ⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩
        -Σ_t log p(y_t | y_<t, text with its spans dropped),  y = X_0 span_0 X_1 span_1 … X_K </s>

    Adjacent masked tokens share a sentinel. `final` closes the last span by a sentinel, as in the
    paper; their code has </s> alone. A share `whole` of the texts is fully masked (none in the
    paper): that is how log_prob is computed, where the encoder sees X_0 </s> and the decoder
    generates X_0 and the text. A model trained only on short spans expects short texts.

    A text with a condition is decoded given it, without corruption. With `joined` the two are one
    text with spans masked on both sides (question and answer both masked); its score is that of a
    blank after the condition.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        sentinels: SentinelTokens,
        spans: RandomSpanMasking,
        *,
        whole: float = 0.0,
        joined: bool = False,
        final: bool = True,
        begin: int | None = None,
        written: Vocabulary | None = None,
    ) -> None:
        super().__init__(vocabulary, sentinels, begin=begin, written=written)
        # One sentinel is the final one; in a pair both texts need some.
        most = (len(sentinels.ids) - 1) // (2 if joined else 1)
        self.spans = replace(spans, max_spans=most)
        self.full_mask_rate = whole
        self.mask_pairs = joined
        self.final_sentinel = final

    def decoder_prefix(self, given: bool = False) -> tuple[int, ...]:
        return (self.decoder_start,) if given and not self.mask_pairs else self.infill_prefix()

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        blank = (self.sentinels.ids[0], self.sentinels.end)
        if condition is None:
            return self.constant_source_view(blank, rows, device)
        if not self.mask_pairs:
            return super().source_view(condition, rows, device)
        closing = torch.tensor([blank], device=device).expand(rows, -1)
        inputs, lengths = compact_left(
            torch.cat([condition.tokens, closing], 1),
            torch.cat([condition.targets_mask(), torch.ones_like(closing).bool()], 1),
            self.vocabulary.pad,
        )
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None and not self.mask_pairs:
            return self.text_view(batch)
        end = self.sentinels.end
        whole = (
            sample_uniform((len(batch), 1), batch.tokens.device, generator=generator)
            < self.full_mask_rate
        )
        allowed = text_positions(batch, end)
        hidden = self.spans(batch, allowed, generator=generator) | (allowed & whole)
        place = torch.arange(batch.tokens.shape[1], device=hidden.device).expand_as(hidden)
        clean = MaskedTexts(batch.tokens, batch.targets_mask(), hidden, place)
        if batch.condition is not None:
            given = batch.condition
            asked = self.spans(given, text_positions(given, end), generator=generator) & ~whole
            nowhere = torch.full_like(given.tokens, -1)
            clean = MaskedTexts(given.tokens, given.targets_mask(), asked, nowhere).concatenate(
                clean
            )
        return self.corruption_view(clean)

    def corruption_view(self, clean: MaskedTexts) -> View:
        """The view in which these positions are masked."""
        tokens, hidden, place, lengths = clean.compact(self.vocabulary.pad)
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], 1)
        starts = hidden & ~before
        names = self._names(tokens)[(starts.cumsum(1) - 1).clamp(min=0)]
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        shown = torch.where(starts, names, tokens)
        inputs, count = compact_left(shown, real & (~hidden | starts), self.vocabulary.pad)
        # Each position gives two target slots: the sentinel before it, and its token.
        nowhere = torch.full_like(place, -1)
        closing, last = self._closing(starts)
        kept = torch.cat([torch.stack([starts, hidden], 2).flatten(1), last], 1)
        values = torch.cat([torch.stack([names, tokens], 2).flatten(1), closing], 1)
        places = torch.stack([nowhere, place], 2).flatten(1)
        places = torch.cat([places, torch.full_like(closing, -1)], 1)
        targets, written = compact_left(values, kept, NO_TARGET)
        clean_positions, _ = compact_left(places, kept, -1)
        decoder = decoder_view_after(
            self.decoder_start, targets, written, clean_positions, self.vocabulary.pad
        )
        return View(inputs=inputs, lengths=count, attention_mask=FullMask(), decoder=decoder)

    def _closing(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 2) the final sentinel and the end token, and which of them are targets."""
        final = self._names(starts)[starts.sum(1)]
        closing = torch.stack([final, torch.full_like(final, self.sentinels.end)], 1)
        return closing, torch.tensor([[self.final_sentinel, True]], device=starts.device).expand_as(
            closing
        )


@dataclass(frozen=True, eq=False)
class MaskedTexts:
    """Clean tokens (B, T), which are real and which masked, and their original positions."""

    tokens: Tensor
    real: Tensor
    hidden: Tensor
    positions: Tensor

    def concatenate(self, other: MaskedTexts) -> MaskedTexts:
        """These followed by the other's, row by row; padding in between is not real."""
        return MaskedTexts(
            torch.cat([self.tokens, other.tokens], 1),
            torch.cat([self.real, other.real], 1),
            torch.cat([self.hidden, other.hidden], 1),
            torch.cat([self.positions, other.positions], 1),
        )

    def compact(self, pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, mask and positions with the real ones moved to the left, and their count."""
        tokens, lengths = compact_left(self.tokens, self.real, pad)
        hidden, _ = compact_left(self.hidden, self.real, 0)
        place, _ = compact_left(self.positions, self.real, -1)
        return tokens, hidden, place, lengths
