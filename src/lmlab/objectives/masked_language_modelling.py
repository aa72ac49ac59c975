"""Masked tokens: hide some, and predict them from all that is left (Devlin et al. 2019)."""

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
from lmlab.objectives.masking.sentence_packing import (
    FullSentences,
    RepackedBatch,
)
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
from lmlab.objectives.sentence_pairs import SentencePairTask
from lmlab.objectives.span_boundary import SpanBoundaryObjective, span_boundaries


class BERTObjective(MaskedLMObjective):
    """-Σ_{t hidden} log p(s_t | what is shown): `choice` says which, `replacement` what is shown.

    The whole text is fed, <s> and </s> with it, and every place sees every other. What more there
    may be: `repeats` hides a text in a few ways only (static masking); `full_sentences` feeds
    several texts at once; `pairs` feeds one as two segments with a question about them, `boundary`
    asks for hidden spans from outside, and their losses are added; `units` are what learns of the
    tokeniser, and where they are mentions the view tells them.
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
        """Told before training what the tokens look like."""
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
        # Hidden first, put together then: so a text is hidden the same way wherever it stands.
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
                "what is asked from outside of spans has a softmax of its own, which no contrast "
                "trains: --set span_places=0, or leave --objective out."
            )

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Of the hidden tokens, and of what is asked besides, for each hidden token."""
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
        """What is asked of the first row as a whole, and what is asked from outside of spans."""
        told = []
        if self.pairs is not None and view.labels is not None:
            told.append(self.pairs.explain(int(view.labels[0])))
        if self.boundary is not None:
            told.append(self.boundary.EXPLANATION)
        return tuple(filter(None, told))

    def mention_name(self, id: int) -> str:
        """The name that a view's mention has in the lexicon, where it is of the lexicon."""
        return self.units.name(id) if isinstance(self.units, MentionUnits) else str(id)

    def boundary_positions(self, view: View) -> dict[int, tuple[int, ...]]:
        """By place of the first row that is asked from outside of its span, the span's two ends."""
        if self.boundary is None:
            return {}
        before, behind, asked = (each[0].tolist() for each in span_boundaries(view))
        return {t: (before[t], behind[t]) for t, told in enumerate(asked) if told}

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        shown = batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_view(batch, shown, masked)


def masked_view(batch: Batch, shown: Tensor, hidden: Tensor) -> View:
    """`shown` (B, T) fed, and the clean tokens asked at the places that are `hidden` (B, T)."""
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=shown,
        lengths=batch.lengths,
        attention_mask=FullMask(),
        targets=batch.tokens.masked_fill(~hidden, NO_TARGET),
        clean_positions=place.expand_as(batch.tokens).masked_fill(~hidden, -1),
    )


def _arranged_view(arranged: RepackedBatch, drawn: MaskedBatch, mentions: Tensor | None) -> View:
    """What was drawn for a clean batch, as its texts stand in another one."""
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
