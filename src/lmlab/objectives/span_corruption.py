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
        masked, spans = self.counts(size)
        mask = self._sample_mask(size, masked, spans, allowed.shape[1], generator)
        rank = (allowed.cumsum(1) - 1).clamp(min=0)
        return mask.gather(1, rank) & allowed

    def counts(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Number of masked tokens and of spans, for texts of `size` (B,)."""
        masked = torch.round(size.double() * self.rate).long()
        masked = torch.minimum(masked.clamp(min=1), (size - 1).clamp(min=1)).minimum(size)
        spans = torch.round(masked.double() / self.mean).long().clamp(min=1)
        # Spans are separated, and with T5's placement a visible token precedes the first.
        available = size - masked + 1 if self.free_placement else (size - masked).clamp(min=1)
        spans = spans.minimum(masked).minimum(available)
        return masked, spans if self.max_spans is None else spans.clamp(max=self.max_spans)

    def _sample_mask(
        self,
        size: Tensor,
        masked: Tensor,
        spans: Tensor,
        time: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """(B, T) bool mask over the tokens of each text, counted from 0.

        Visible tokens of gap g get the number 2g, masked ones of span k the number 2k + 1; sorted
        by these numbers they are the text.
        """
        positions = torch.arange(time, device=size.device)[None]
        span = _segments(masked, spans - 1, time, generator)
        gap = self._sample_gaps(size - masked, spans, time, generator)
        is_masked = positions < masked[:, None]
        later = (positions - masked[:, None]).clamp(min=0)
        numbers = torch.where(is_masked, 2 * span + 1, 2 * gap.gather(1, later))
        beyond = 2 * time + 2
        ordered = numbers.masked_fill(positions >= size[:, None], beyond).sort(1).values
        return (ordered % 2 == 1) & (ordered < beyond)

    def _sample_gaps(
        self, visible_count: Tensor, spans: Tensor, time: int, generator: torch.Generator | None
    ) -> Tensor:
        """(B, T) the gap between spans that each visible token belongs to."""
        if not self.free_placement:
            return _segments(visible_count, spans - 1, time, generator)
        # The first and the last gap may be empty: each is lent a token, removed here.
        return _segments(visible_count + 2, spans, time + 2, generator)[:, 1:-1]


def _segments(size: Tensor, cuts: Tensor, time: int, generator: torch.Generator | None) -> Tensor:
    """(B, T) the segment, from 0, of each of `size` (B,) tokens.

    `cuts` (B,) of the size - 1 boundaries between tokens are sampled uniformly, so no segment is
    empty.
    """
    positions = torch.arange(time, device=size.device)[None]
    between = (positions >= 1) & (positions < size[:, None])
    uniforms = sample_uniform((len(size), time), size.device, generator=generator)
    rank = uniforms.masked_fill(~between, 2.0).argsort(1).argsort(1)
    return ((rank < cuts[:, None]) & between).cumsum(1)


class SpanCorruption(TextToTextObjective):
    """Span corruption (Raffel et al. 2020): generate the spans replaced by sentinels.

        Thank you ⟨X⟩ me to your party ⟨Y⟩ week → ⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩
        -Σ_t log p(y_t | y_<t, text with its spans dropped),  y = X_0 span_0 X_1 span_1 … X_K </s>

    Adjacent masked tokens share a sentinel. `final_sentinel` closes the last span by a sentinel, as
    in the paper; their code has </s> alone. A share `full_mask_rate` of the texts is fully masked
    (none in the paper): that is how log_prob is computed, where the encoder sees X_0 </s> and the
    decoder generates X_0 and the text. A model trained only on short spans expects short texts.

    A text with a condition is decoded given it, without corruption. With `mask_pairs` the two are
    one text with spans masked on both sides (question and answer both masked); its score is that of
    a blank after the condition.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        sentinels: SentinelTokens,
        spans: RandomSpanMasking,
        *,
        full_mask_rate: float = 0.0,
        mask_pairs: bool = False,
        final_sentinel: bool = True,
        decoder_start: int | None = None,
        decoder_vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__(
            vocabulary,
            sentinels,
            decoder_start=decoder_start,
            decoder_vocabulary=decoder_vocabulary,
        )
        # One sentinel is the final one; in a pair both texts need some.
        max_spans = (len(sentinels.ids) - 1) // (2 if mask_pairs else 1)
        self.spans = replace(spans, max_spans=max_spans)
        self.full_mask_rate = full_mask_rate
        self.mask_pairs = mask_pairs
        self.final_sentinel = final_sentinel

    def decoder_prefix(self, has_source: bool = False) -> tuple[int, ...]:
        return (self.decoder_start,) if has_source and not self.mask_pairs else self.infill_prefix()

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
        fully_masked = (
            sample_uniform((len(batch), 1), batch.tokens.device, generator=generator)
            < self.full_mask_rate
        )
        allowed = text_positions(batch, end)
        masked = self.spans(batch, allowed, generator=generator) | (allowed & fully_masked)
        positions = torch.arange(batch.tokens.shape[1], device=masked.device).expand_as(masked)
        clean = MaskedTexts(batch.tokens, batch.targets_mask(), masked, positions)
        if batch.condition is not None:
            source = batch.condition
            source_mask = (
                self.spans(source, text_positions(source, end), generator=generator) & ~fully_masked
            )
            no_positions = torch.full_like(source.tokens, -1)
            clean = MaskedTexts(
                source.tokens, source.targets_mask(), source_mask, no_positions
            ).concatenate(clean)
        return self.corruption_view(clean)

    def corruption_view(self, clean: MaskedTexts) -> View:
        """The view in which these positions are masked."""
        tokens, masked, positions, lengths = clean.compact(self.vocabulary.pad)
        previous = torch.cat([torch.zeros_like(masked[:, :1]), masked[:, :-1]], 1)
        starts = masked & ~previous
        sentinels = self._sentinel_ids(tokens)[(starts.cumsum(1) - 1).clamp(min=0)]
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        with_sentinels = torch.where(starts, sentinels, tokens)
        inputs, count = compact_left(with_sentinels, real & (~masked | starts), self.vocabulary.pad)
        # Each position gives two target slots: the sentinel before it, and its token.
        no_positions = torch.full_like(positions, -1)
        closing, last = self._closing(starts)
        is_target = torch.cat([torch.stack([starts, masked], 2).flatten(1), last], 1)
        values = torch.cat([torch.stack([sentinels, tokens], 2).flatten(1), closing], 1)
        slot_positions = torch.stack([no_positions, positions], 2).flatten(1)
        slot_positions = torch.cat([slot_positions, torch.full_like(closing, -1)], 1)
        targets, target_lengths = compact_left(values, is_target, NO_TARGET)
        clean_positions, _ = compact_left(slot_positions, is_target, -1)
        decoder = decoder_view_after(
            self.decoder_start, targets, target_lengths, clean_positions, self.vocabulary.pad
        )
        return View(inputs=inputs, lengths=count, attention_mask=FullMask(), decoder=decoder)

    def _closing(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 2) the final sentinel and the end token, and which of them are targets."""
        final = self._sentinel_ids(starts)[starts.sum(1)]
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
        masked, _ = compact_left(self.hidden, self.real, 0)
        positions, _ = compact_left(self.positions, self.real, -1)
        return tokens, masked, positions, lengths
