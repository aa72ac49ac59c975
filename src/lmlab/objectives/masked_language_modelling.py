"""Masked language modelling (BERT), any masking; packing, NSP or SOP, span-boundary loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, weighted_cross_entropy
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    MaskedBatch,
    MaskingStrategy,
    MaskReplacement,
    StaticMasking,
    maskable_positions,
    masked_view,
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
    `units` are words or mentions, set up with the tokenizer; mentions are recorded in the view.
    """

    prediction_kind = "masked text"

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
        if pairs is not None:
            self.extra_positions = 2  # a separator between the two segments
        self.boundary = boundary
        self.units = units

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Receive the tokenizer before training."""
        if self.units is not None:
            self.units.setup_tokenizer(tokenizer)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if self.static_masking is None:
            masked_batch = self._sample_mask(batch, generator)
        else:
            masked_batch = self.static_masking(self._sample_mask, batch, generator=generator)
        mentions = None
        if isinstance(self.units, MentionUnits):
            mentions = self.units.mention_ids(batch, maskable_positions(batch, self.vocabulary))
        # Mask first, then pack: the mask of a text does not depend on the packing.
        packing = self.pairs or self.full_sentences
        if packing is not None:
            return _packed_view(packing.pack(batch, generator=generator), masked_batch, mentions)
        return replace(
            masked_view(batch, masked_batch.inputs, masked_batch.masked), mentions=mentions
        )

    def _sample_mask(self, batch: Batch, generator: torch.Generator | None) -> MaskedBatch:
        allowed = maskable_positions(batch, self.vocabulary)
        chosen = self.choice(batch, allowed, generator=generator)
        inputs = self.replacement(batch.tokens, chosen, generator=generator)
        return MaskedBatch(masked=chosen, inputs=inputs)

    def check_sampled_loss(self) -> None:
        if self.boundary is not None:
            raise UserError(
                "the span-boundary objective has its own softmax, which a sampled loss does not "
                "train; use --set sbo_positions=0, or remove --objective."
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
        masked_loss = weighted_cross_entropy(view, network.predict(view, hidden))
        parts, total = {"masked": masked_loss}, masked_loss.total
        for task in (self.pairs, self.boundary):
            if task is not None:
                parts[task.name] = task.loss(view, hidden.values)
                total = total + parts[task.name].total
        return Loss(total, masked_loss.count, parts), hidden.state

    def explain(self, view: View) -> tuple[str, ...]:
        """The pair label of the first row, and its span-boundary targets."""
        sentences = []
        if self.pairs is not None and view.labels is not None:
            sentences.append(self.pairs.explain(int(view.labels[0])))
        if self.boundary is not None:
            sentences.append(self.boundary.EXPLANATION)
        return tuple(filter(None, sentences))

    def mention_name(self, id: int) -> str:
        """The lexicon name of a mention in a view, if it comes from the lexicon."""
        return self.units.name(id) if isinstance(self.units, MentionUnits) else str(id)

    def boundary_positions(self, view: View) -> dict[int, tuple[int, ...]]:
        """Boundary positions of the span, by position of the first row's span-boundary targets."""
        if self.boundary is None:
            return {}
        before, after, targets = (values[0].tolist() for values in span_boundaries(view))
        return {t: (before[t], after[t]) for t, is_target in enumerate(targets) if is_target}


def _packed_view(packed: RepackedBatch, masked_batch: MaskedBatch, mentions: Tensor | None) -> View:
    """The masked clean batch, rearranged into a packed batch."""
    inputs = packed.take(masked_batch.inputs, fill=packed.batch.tokens)
    chosen = packed.take(masked_batch.masked, fill=False)
    return replace(
        masked_view(packed.batch, inputs, chosen),
        clean_positions=packed.positions.masked_fill(~chosen, -1),
        clean_rows=packed.rows,
        segments=packed.segments,
        labels=packed.labels,
        mentions=None if mentions is None else packed.take(mentions, fill=-1),
    )
