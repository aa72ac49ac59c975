"""Masked and translation language modelling (XLM): one text, or a pair of translations as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.masking.token_masking import (
    MaskingStrategy,
    MaskReplacement,
    maskable_positions,
    require_mask_token,
)
from lmlab.objectives.objective_interfaces import MaskedLMObjective

SOURCE_LANGUAGE, TEXT_LANGUAGE = 0, 1
"""Language ids of the two sides of a pair."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceInputs:
    """Texts, sources, or each text followed by its source, as inputs of L positions.

    Position t of a text stays at t. The order of the two does not matter under full attention,
    since positions start again at 0 in each.
    """

    batch: Batch
    """The inputs (B, L), without a condition."""
    positions: Tensor
    """(B, L) position in its own sentence; 0 at padding."""
    languages: Tensor
    """(B, L) language ids."""
    in_text: Tensor
    """(B, L) bool: whether a position belongs to the text, not to its source."""


def single_sentences(batch: Batch, language: int) -> SentenceInputs:
    """Texts without a source, in one language."""
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return SentenceInputs(
        batch=batch,
        positions=positions.expand_as(batch.tokens),
        languages=torch.full_like(batch.tokens, language),
        in_text=torch.ones_like(batch.tokens, dtype=torch.bool),
    )


def join_pairs(
    batch: Batch, *, pad: int, with_text: Tensor | None = None, with_source: Tensor | None = None
) -> SentenceInputs:
    """Join texts (B, T) and sources.

    Rows where `with_text` (B,) or `with_source` (B,) is false have the other side alone.
    """
    assert batch.condition is not None
    text, source = batch.tokens, batch.condition.tokens
    text_lengths, source_lengths = batch.lengths, batch.condition.lengths
    if with_text is not None:
        text_lengths = text_lengths * with_text
    if with_source is not None:
        source_lengths = source_lengths * with_source
    lengths = text_lengths + source_lengths
    width = max(int(lengths.max()), text.shape[1])
    places = torch.arange(width, device=text.device).expand(len(batch), -1)
    in_text = places < text_lengths[:, None]
    padding = places >= lengths[:, None]
    positions = torch.where(in_text, places, places - text_lengths[:, None]).masked_fill(padding, 0)
    tokens = torch.where(
        in_text,
        text.gather(1, positions.clamp(max=text.shape[1] - 1)),
        source.gather(1, positions.clamp(max=source.shape[1] - 1)),
    )
    tokens = tokens.masked_fill(padding, pad)
    return SentenceInputs(
        batch=replace(batch, tokens=tokens, lengths=lengths, condition=None),
        positions=positions,
        languages=torch.where(in_text, TEXT_LANGUAGE, SOURCE_LANGUAGE),
        in_text=in_text,
    )


class TranslationLM(MaskedLMObjective):
    """MLM and TLM: -Σ_{t masked} log p(s_t | unmasked tokens of both languages).

    Lample and Conneau 2019. A pair x, y becomes <s> x </s> <s> y </s> with probability
    `translation_share` (translation LM: a word may be predicted from its translation), else one of
    its two sides alone (MLM). Each token has an embedding of its language; positions start again in
    the second sentence. A text without a source is in `language`.

    log_prob of a text given its source is the pseudo-log-likelihood with the whole source visible.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: MaskingStrategy,
        replacement: MaskReplacement,
        *,
        translation_share: float,
        language: int = TEXT_LANGUAGE,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.choice = choice
        self.replacement = replacement
        self.translation_share = translation_share
        self.language = language

    def use_language(self, language: int) -> None:
        """Take texts without a source to be in this language."""
        self.language = language

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        inputs = self._inputs(batch, generator)
        clean = inputs.batch
        allowed = maskable_positions(clean, self.vocabulary)
        masked = self.choice(clean, allowed, generator=generator)
        corrupted = self.replacement(clean.tokens, masked, generator=generator)
        return masked_inputs_view(inputs, corrupted, masked)

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The text with its source, if there is one, and `masked` (B, T) positions masked.

        Position t of the view is position t of the text; the source comes after it.
        """
        if batch.condition is None:
            inputs = single_sentences(batch, self.language)
        else:
            inputs = join_pairs(batch, pad=self.vocabulary.pad)
        masked = pad_columns(masked, inputs.batch.tokens.shape[1])
        tokens = inputs.batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_inputs_view(inputs, tokens, masked)

    def explain(self, view: View) -> tuple[str, ...]:
        """Which languages the first row has."""
        assert view.segments is not None
        languages = view.segments[0, : int(view.lengths[0])].unique().tolist()
        if len(languages) > 1:
            return (
                "Translation language modelling: a text and its source in one input; positions "
                "start again in the second sentence, and segment ids are languages.",
            )
        return (f"Masked language modelling of one sentence, in language {languages[0]}.",)

    def _inputs(self, batch: Batch, generator: torch.Generator | None) -> SentenceInputs:
        """The clean inputs of a training step: pairs, or sides of pairs, or single texts."""
        if batch.condition is None:
            return single_sentences(batch, self.language)
        shape = (2, len(batch))
        pair, side = sample_uniform(shape, batch.tokens.device, generator=generator)
        both, text_side = pair < self.translation_share, side < 0.5
        return join_pairs(
            batch,
            pad=self.vocabulary.pad,
            with_text=both | text_side,
            with_source=both | ~text_side,
        )


def masked_inputs_view(inputs: SentenceInputs, corrupted: Tensor, masked: Tensor) -> View:
    """The view of `corrupted` inputs (B, L), with the clean tokens as targets at `masked`."""
    return View(
        inputs=corrupted,
        lengths=inputs.batch.lengths,
        attention_mask=FullMask(),
        targets=inputs.batch.tokens.masked_fill(~masked, NO_TARGET),
        positions=inputs.positions,
        segments=inputs.languages,
        clean_positions=inputs.positions.masked_fill(~(masked & inputs.in_text), -1),
    )


def pad_columns(mask: Tensor, width: int) -> Tensor:
    """(B, L) bool of (B, T): false at the positions after the text."""
    return F.pad(mask, (0, width - mask.shape[1]), value=False)
