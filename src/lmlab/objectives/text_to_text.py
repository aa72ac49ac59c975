"""Text-to-text objectives (T5): every task maps a source text to a target text.

Raffel et al. 2020. A task is named by a prefix of the source ("translate English to German: …"), so
nothing here depends on the task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.objective_interfaces import SentinelObjective


class TextToTextObjective(SentinelObjective):
    """Text to text: log p(s | x) = Σ_t log p(s_t | s_<t, x); without a source, x is </s>.

    The latter is T5's language modelling. Sources are encoded without position 0 of their batch,
    the start token; the decoder begins with `begin`. If the vocabulary has sentinels, a text ends
    with </s> or any of them, so that log_prob is normalised over texts without them.
    """

    kind: ClassVar[ScoreKind] = "exact"

    def __init__(
        self,
        vocabulary: Vocabulary,
        sentinels: SentinelTokens,
        *,
        begin: int | None = None,
        written: Vocabulary | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.sentinels = sentinels
        self.decoder_start = vocabulary.bos if begin is None else begin
        self.decoder_vocabulary = written or vocabulary

    def decoder_prefix(self, given: bool = False) -> tuple[int, ...]:
        return (self.decoder_start,)

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        if condition is None:
            return self.constant_source_view((self.sentinels.end,), rows, device)
        return self.encoder_view(condition)

    def encoder_view(self, batch: Batch) -> View:
        lengths = (batch.lengths - 1).clamp(min=0)
        return View(inputs=batch.tokens[:, 1:], lengths=lengths, attention_mask=FullMask())

    @staticmethod
    def constant_source_view(symbols: tuple[int, ...], rows: int, device: torch.device) -> View:
        """The same few special tokens as the source of every row."""
        inputs = torch.tensor([symbols], device=device).expand(rows, -1)
        lengths = torch.full((rows,), len(symbols), device=device)
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        return self.text_view(batch)

    def text_view(self, batch: Batch) -> View:
        """The condition or the empty source, with the whole text as target."""
        given = batch.condition is not None
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=whole_text_view(batch, self.decoder_prefix(given)))

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
        found = network.predict(view, hidden).to_dense()
        if self.sentinels.ids:
            assert view.decoder is not None and view.decoder.targets is not None
            targets = view.decoder.targets
            found = found.masked_fill(torch.isin(targets, self._names(targets)), float("-inf"))
            ends = targets == self.sentinels.end
            closing = self.sentinels.log_span_end(network.emission.log_probs(hidden.values[ends]))
            found = found.masked_scatter(ends, closing.to(found))
        before = len(self.decoder_prefix(batch.condition is not None)) - 1
        return LogProbs(per_token=found[:, before:], kind=self.kind)

    def infill_prefix(self) -> tuple[int, ...]:
        return (self.decoder_start, self.sentinels.ids[0])

    def infill_source_view(self, batch: Batch) -> View:
        blank, tokens = self._blanks(batch), batch.tokens[:, 1:]
        names = self._names(tokens)
        number = (blank.cumsum(1) - 1).clamp(0, len(names) - 1)
        lengths = (batch.lengths - 1).clamp(min=0)
        shown = torch.where(blank, names[number], tokens)
        return View(inputs=shown, lengths=lengths, attention_mask=FullMask())

    def count_blanks(self, batch: Batch) -> Tensor:
        return self._blanks(batch).sum(1)

    def _blanks(self, batch: Batch) -> Tensor:
        """(B, T - 1) true at the mask tokens and sentinels of texts, without position 0."""
        if not self.sentinels.ids:
            raise UserError("this system was trained without sentinels, so it can't fill blanks.")
        tokens = batch.tokens[:, 1:]
        found = torch.isin(tokens, self._names(tokens))
        if self.vocabulary.mask is not None:
            found |= tokens == self.vocabulary.mask
        return found & batch.targets_mask()[:, 1:]

    def _names(self, like: Tensor) -> Tensor:
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
        drawn = sample_uniform((rows,), device, generator=generator)
        cut = torch.minimum((drawn * count).long(), (count - 1).clamp(min=0))
        place = torch.arange(batch.tokens.shape[1], device=device).expand_as(batch.tokens)
        shown = (place >= 1) & (place <= cut[:, None])
        closing = torch.full((rows, 1), self.sentinels.end, device=device)
        always = torch.ones_like(closing, dtype=torch.bool)
        inputs, lengths = compact_left(
            torch.cat([batch.tokens, closing], 1),
            torch.cat([shown, always], 1),
            self.vocabulary.pad,
        )
        asked = batch.targets_mask() & ~shown
        targets, _ = compact_left(batch.tokens, asked, NO_TARGET)
        clean_positions, written = compact_left(place, asked, -1)
        decoder = decoder_view_after(
            self.decoder_start, targets, written, clean_positions, self.vocabulary.pad
        )
        return View(inputs=inputs, lengths=lengths, attention_mask=FullMask(), decoder=decoder)


def text_positions(batch: Batch, end: int | None) -> Tensor:
    """(B, T) bool: a text's own tokens, without position 0, padding and a closing end token."""
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    if end is None:
        return batch.targets_mask()
    closes = (batch.tokens == end) & (place == batch.lengths[:, None] - 1)
    return batch.targets_mask() & ~closes


def compact_left(values: Tensor, kept: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Compact the values (B, T) at `kept` positions to the left, with the count of each row.

    As wide as the longest row and at least 1; shorter rows are filled with `fill`.
    """
    lengths = kept.sum(1)
    widest = max(int(lengths.max()) if len(lengths) else 0, 1)
    inside = torch.arange(widest, device=values.device) < lengths[:, None]
    together = torch.full_like(values[:, :1], fill).expand(-1, widest)
    # Both masks have equally many true positions in each row, in reading order.
    return together.masked_scatter(inside, values[kept]), lengths


def decoder_view_after(
    begin: int, targets: Tensor, lengths: Tensor, clean_positions: Tensor, pad: int
) -> View:
    """A decoder's view: targets (B, T), each predicted from `begin` and the targets before it."""
    first = torch.full_like(targets[:, :1], begin)
    inputs = torch.cat([first, targets[:, :-1]], 1)
    return View(
        inputs=inputs.masked_fill(targets == NO_TARGET, pad),
        lengths=lengths,
        attention_mask=CausalMask(),
        targets=targets,
        clean_positions=clean_positions,
    )


def whole_text_view(batch: Batch, opening: tuple[int, ...]) -> View:
    """A decoder's view of a whole text, positions 1 … of the batch, after the prefix `opening`."""
    rows, device, before = len(batch), batch.tokens.device, len(opening) - 1
    given = torch.tensor([opening], device=device).expand(rows, -1)
    nothing = torch.full((rows, before), NO_TARGET, device=device)
    asked = batch.targets_mask()[:, 1:]
    place = torch.arange(1, batch.tokens.shape[1], device=device).expand_as(asked)
    targets = batch.tokens[:, 1:].masked_fill(~asked, NO_TARGET)
    return View(
        inputs=torch.cat([given, batch.tokens[:, 1:-1]], 1),
        lengths=(batch.lengths - 1).clamp(min=0) + before,
        attention_mask=CausalMask(),
        targets=torch.cat([nothing, targets], 1),
        clean_positions=torch.cat([nothing.clamp(min=-1), place.masked_fill(~asked, -1)], 1),
    )
