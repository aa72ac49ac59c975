"""Text-to-text objectives (T5): source to target text, and prefix LM; decoder views.

Raffel et al. 2020. A task is named by a prefix of the source ("translate English to German: …"), so
nothing here depends on the task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.objective_interfaces import Seq2SeqObjective


class TextToTextObjective(Seq2SeqObjective):
    """Text to text: log p(s | x) = Σ_t log p(s_t | s_<t, x); without a source, x is </s>.

    The latter is T5's language modelling. Sources are encoded without position 0 of their batch,
    the start token; the decoder begins with `decoder_start`. If the vocabulary has sentinels, a
    text ends with </s> or any of them, so that log_prob is normalised over texts without them.
    """

    kind: ClassVar[ScoreKind] = "exact"

    def __init__(
        self,
        vocabulary: Vocabulary,
        sentinels: SentinelTokens,
        *,
        decoder_start: int | None = None,
        decoder_vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.sentinels = sentinels
        self.decoder_start = vocabulary.bos if decoder_start is None else decoder_start
        self.decoder_vocabulary = decoder_vocabulary or vocabulary

    def decoder_prefix(self, has_source: bool = False) -> tuple[int, ...]:
        """Decoder prefix before a text; `has_source` says whether there is a source."""
        return (self.decoder_start,)

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        if condition is None:
            return self.constant_source_view((self.sentinels.end,), rows, device)
        return self.encoder_view(condition)

    def encoder_view(self, batch: Batch) -> View:
        """The encoder's view of texts that are only encoded, from position 1 on."""
        lengths = (batch.lengths - 1).clamp(min=0)
        return View(inputs=batch.tokens[:, 1:], lengths=lengths, attention_mask=FullMask())

    @staticmethod
    def constant_source_view(tokens: tuple[int, ...], rows: int, device: torch.device) -> View:
        """The same few special tokens as the source of every row."""
        inputs = torch.tensor([tokens], device=device).expand(rows, -1)
        lengths = torch.full((rows,), len(tokens), device=device)
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        return self.text_view(batch)

    def text_view(self, batch: Batch) -> View:
        """The condition or the empty source, with the whole text as target."""
        has_source = batch.condition is not None
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=whole_text_view(batch, self.decoder_prefix(has_source)))

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        assert isinstance(network, Assembly)
        view = self.text_view(batch)
        hidden = network.hidden(view)
        log_probs = network.predict(view, hidden).to_dense()
        if self.sentinels.ids:
            assert view.decoder is not None and view.decoder.targets is not None
            targets = view.decoder.targets
            log_probs = log_probs.masked_fill(
                torch.isin(targets, self._sentinel_ids(targets)), float("-inf")
            )
            ends = targets == self.sentinels.end
            closing = self.sentinels.log_span_end(network.emission.log_probs(hidden.values[ends]))
            log_probs = log_probs.masked_scatter(ends, closing.to(log_probs))
        skipped = len(self.decoder_prefix(batch.condition is not None)) - 1
        return LogProbs(per_token=log_probs[:, skipped:], kind=self.kind)

    def infill_prefix(self) -> tuple[int, ...]:
        """Decoder prefix before the first of several spans."""
        return (self.decoder_start, self.sentinels.ids[0])

    def infill_source_view(self, batch: Batch) -> View:
        """The encoder's view of texts in which each mask token or sentinel is a blank."""
        blank, tokens = self._blanks(batch), batch.tokens[:, 1:]
        sentinels = self._sentinel_ids(tokens)
        number = (blank.cumsum(1) - 1).clamp(0, len(sentinels) - 1)
        lengths = (batch.lengths - 1).clamp(min=0)
        inputs = torch.where(blank, sentinels[number], tokens)
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())

    def count_blanks(self, batch: Batch) -> Tensor:
        """(B,) number of blanks in each text of `infill_source_view`."""
        return self._blanks(batch).sum(1)

    def _blanks(self, batch: Batch) -> Tensor:
        """(B, T - 1) true at the mask tokens and sentinels of texts, without position 0."""
        if not self.sentinels.ids:
            raise UserError("this system was trained without sentinels, so it can't fill blanks.")
        tokens = batch.tokens[:, 1:]
        is_blank = torch.isin(tokens, self._sentinel_ids(tokens))
        if self.vocabulary.mask is not None:
            is_blank |= tokens == self.vocabulary.mask
        return is_blank & batch.targets_mask()[:, 1:]

    def _sentinel_ids(self, like: Tensor) -> Tensor:
        return torch.tensor(self.sentinels.ids, device=like.device)


class PrefixLM(TextToTextObjective):
    """Prefix LM: -log p(s_>c | s_≤c), c uniform: encode a prefix, generate the rest.

    Of n tokens 0 to n - 1 are in the prefix (Raffel et al. 2020; Liu et al. 2018), closed by </s>.
    A text is scored with an empty prefix, one of the n splits; a text with a source is decoded
    given it.
    """

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None:
            return self.text_view(batch)
        rows, device = len(batch), batch.tokens.device
        count = text_positions(batch, self.sentinels.end).sum(1)
        uniforms = sample_uniform((rows,), device, generator=generator)
        cut = torch.minimum((uniforms * count).long(), (count - 1).clamp(min=0))
        positions = torch.arange(batch.tokens.shape[1], device=device).expand_as(batch.tokens)
        in_prefix = (positions >= 1) & (positions <= cut[:, None])
        closing = torch.full((rows, 1), self.sentinels.end, device=device)
        always = torch.ones_like(closing, dtype=torch.bool)
        inputs, lengths = compact_left(
            torch.cat([batch.tokens, closing], 1),
            torch.cat([in_prefix, always], 1),
            self.vocabulary.pad,
        )
        target_mask = batch.targets_mask() & ~in_prefix
        targets, _ = compact_left(batch.tokens, target_mask, NO_TARGET)
        clean_positions, target_lengths = compact_left(positions, target_mask, -1)
        decoder = decoder_view_after(
            self.decoder_start, targets, target_lengths, clean_positions, self.vocabulary.pad
        )
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask(), decoder=decoder)


def text_positions(batch: Batch, end: int | None) -> Tensor:
    """(B, T) bool: a text's own tokens, without position 0, padding and a closing end token."""
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    if end is None:
        return batch.targets_mask()
    closes = (batch.tokens == end) & (positions == batch.lengths[:, None] - 1)
    return batch.targets_mask() & ~closes


def compact_left(values: Tensor, mask: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Compact the values (B, T) where `mask` is true to the left, with the count of each row.

    As wide as the longest row and at least 1; shorter rows are filled with `fill`.
    """
    lengths = mask.sum(1)
    widest = max(int(lengths.max()) if len(lengths) else 0, 1)
    inside = torch.arange(widest, device=values.device) < lengths[:, None]
    compacted = torch.full_like(values[:, :1], fill).expand(-1, widest)
    # Both masks have equally many true positions in each row, in reading order.
    return compacted.masked_scatter(inside, values[mask]), lengths


def decoder_view_after(
    decoder_start: int, targets: Tensor, lengths: Tensor, clean_positions: Tensor, pad: int
) -> View:
    """A decoder's view: targets (B, T), predicted from `decoder_start` and earlier targets."""
    first = torch.full_like(targets[:, :1], decoder_start)
    inputs = torch.cat([first, targets[:, :-1]], 1)
    return View(
        inputs=inputs.masked_fill(targets == NO_TARGET, pad),
        lengths=lengths,
        attention_mask=CausalMask(),
        targets=targets,
        clean_positions=clean_positions,
    )


def whole_text_view(batch: Batch, prefix: tuple[int, ...]) -> View:
    """A decoder's view of a whole text, positions 1 … of the batch, after a prefix."""
    rows, device, extra = len(batch), batch.tokens.device, len(prefix) - 1
    prefix_tokens = torch.tensor([prefix], device=device).expand(rows, -1)
    no_targets = torch.full((rows, extra), NO_TARGET, device=device)
    target_mask = batch.targets_mask()[:, 1:]
    positions = torch.arange(1, batch.tokens.shape[1], device=device).expand_as(target_mask)
    targets = batch.tokens[:, 1:].masked_fill(~target_mask, NO_TARGET)
    return View(
        inputs=torch.cat([prefix_tokens, batch.tokens[:, 1:-1]], 1),
        lengths=(batch.lengths - 1).clamp(min=0) + extra,
        attention_mask=CausalMask(),
        targets=torch.cat([no_targets, targets], 1),
        clean_positions=torch.cat(
            [no_targets.clamp(min=-1), positions.masked_fill(~target_mask, -1)], 1
        ),
    )
