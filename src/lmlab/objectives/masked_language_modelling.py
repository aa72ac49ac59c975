"""Masked language modelling (BERT): predict masked tokens from the rest (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, weighted_cross_entropy
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    MaskedBatch,
    MaskingStrategy,
    MaskReplacement,
    StaticMasking,
    maskable_positions,
    require_mask_token,
)
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.objectives.objective_interfaces import MaskedLMObjective
from lmlab.objectives.sentence_pairs import FullSentences, RepackedBatch, SentencePairTask
from lmlab.objectives.span_boundary import SpanBoundaryObjective, span_boundaries


class BERTObjective(MaskedLMObjective):
    """MLM: -Σ_{t masked} log p(s_t | input); `choice` selects targets, `replacement` their input.

    The input is the whole text with <s> and </s>, with bidirectional attention. Options: `repeats`
    is static masking; `full_sentences` packs several texts into one input; `pairs` splits a text
    into two segments and adds a pair loss (NSP, SOP); `boundary` adds the span-boundary loss;
    `units` are words or mentions, set up with the tokeniser; mentions are recorded in the view.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: MaskingStrategy,
        replacement: MaskReplacement,
        *,
        repeats: StaticMasking | None = None,
        full_sentences: FullSentences | None = None,
        pairs: SentencePairTask | None = None,
        boundary: SpanBoundaryObjective | None = None,
        units: WordUnits | MentionUnits | None = None,
    ) -> None:
        super().__init__()
        assert full_sentences is None or pairs is None, "either several texts or one in two"
        self.vocabulary = vocabulary
        self.choice = choice
        self.replacement = replacement
        self.static_masking = repeats
        self.full_sentences = full_sentences
        self.pairs = pairs
        self.boundary = boundary
        self.units = units

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Receive the tokeniser before training."""
        if self.units is not None:
            self.units.setup_tokenizer(pieces)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if self.static_masking is None:
            drawn = self._draw(batch, generator)
        else:
            drawn = self.static_masking(self._draw, batch, generator=generator)
        mentions = None
        if isinstance(self.units, MentionUnits):
            mentions = self.units.mention_ids(batch, maskable_positions(batch, self.vocabulary))
        # Mask first, then pack: the mask of a text does not depend on the packing.
        arranging = self.pairs or self.full_sentences
        if arranging is not None:
            return _arranged_view(arranging.pack(batch, generator=generator), drawn, mentions)
        return replace(masked_view(batch, drawn.inputs, drawn.masked), mentions=mentions)

    def _draw(self, batch: Batch, generator: torch.Generator | None) -> MaskedBatch:
        allowed = maskable_positions(batch, self.vocabulary)
        chosen = self.choice(batch, allowed, generator=generator)
        shown = self.replacement(batch.tokens, chosen, generator=generator)
        return MaskedBatch(masked=chosen, inputs=shown)

    def check_sampled_loss(self) -> None:
        if self.boundary is not None:
            raise UserError(
                "the span-boundary objective has its own softmax, which a sampled loss does not "
                "train; use --set span_places=0, or remove --objective."
            )

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """MLM loss plus auxiliary losses, per masked token."""
        view = self.view(batch, generator=generator)
        hidden = network.hidden(view, state)
        found = weighted_cross_entropy(view, network.predict(view, hidden))
        parts, total = {"masked": found}, found.total
        for task in (self.pairs, self.boundary):
            if task is not None:
                parts[task.name] = task.loss(view, hidden.values)
                total = total + parts[task.name].total
        return Loss(total, found.count, parts), hidden.state

    def explain(self, view: View) -> tuple[str, ...]:
        """The pair label of the first row, and its span-boundary targets."""
        told = []
        if self.pairs is not None and view.labels is not None:
            told.append(self.pairs.explain(int(view.labels[0])))
        if self.boundary is not None:
            told.append(self.boundary.EXPLANATION)
        return tuple(filter(None, told))

    def mention_name(self, id: int) -> str:
        """The lexicon name of a mention in a view, if it comes from the lexicon."""
        return self.units.name(id) if isinstance(self.units, MentionUnits) else str(id)

    def boundary_positions(self, view: View) -> dict[int, tuple[int, ...]]:
        """Boundary positions of the span, by position of the first row's span-boundary targets."""
        if self.boundary is None:
            return {}
        before, behind, asked = (each[0].tolist() for each in span_boundaries(view))
        return {t: (before[t], behind[t]) for t, told in enumerate(asked) if told}

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        shown = batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_view(batch, shown, masked)


def masked_view(batch: Batch, shown: Tensor, hidden: Tensor) -> View:
    """Inputs `shown` (B, T), with the clean tokens as targets at the positions `hidden` (B, T)."""
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=shown,
        lengths=batch.lengths,
        attention_mask=FullMask(),
        targets=batch.tokens.masked_fill(~hidden, NO_TARGET),
        clean_positions=place.expand_as(batch.tokens).masked_fill(~hidden, -1),
    )


def _arranged_view(arranged: RepackedBatch, drawn: MaskedBatch, mentions: Tensor | None) -> View:
    """The masked clean batch, rearranged into a packed batch."""
    shown = arranged.take(drawn.inputs, fill=arranged.batch.tokens)
    chosen = arranged.take(drawn.masked, fill=False)
    return replace(
        masked_view(arranged.batch, shown, chosen),
        clean_positions=arranged.positions.masked_fill(~chosen, -1),
        clean_rows=arranged.rows,
        segments=arranged.segments,
        labels=arranged.labels,
        mentions=None if mentions is None else arranged.take(mentions, fill=-1),
    )
