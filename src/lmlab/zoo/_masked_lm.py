"""BERT-like masked LMs (masking, sentence pairs, packing): shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.parts import Backbone
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.masked_lm import BERT, MaskedLM
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskingStrategy,
    MaskReplacement,
    StaticMasking,
    require_mask_token,
)
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.objectives.sampled_losses import MaskedLossConfig
from lmlab.objectives.sentence_pairs import (
    FullSentences,
    NextSentencePrediction,
    SentenceOrderPrediction,
    SentencePairTask,
)
from lmlab.objectives.span_boundary import SpanBoundaryObjective
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import BERTEncoderConfig

SentencePairName = Literal["next", "order", "none"]
SENTENCE_PAIR_TASKS: dict[str, type[SentencePairTask]] = {
    "next": NextSentencePrediction,
    "order": SentenceOrderPrediction,
}


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(MaskedLossConfig, BERTEncoderConfig):
    """Settings of a masked language model."""

    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""
    masking: Literal["static", "dynamic"] = "static"
    """static: reuse a few masks per text in all epochs; dynamic: sample a new mask every time."""
    duplicates: int = field(default=10, metadata={"at_least": 1})
    """Masks per text under static masking."""
    masking_seed: int = field(default=0, metadata={"at_least": 0, "below": 2**31})
    """Random seed of static masking."""
    pairs: SentencePairName = "none"
    """next: next-sentence prediction; order: sentence-order prediction; none: single texts."""
    segments: int = field(default=0, metadata={"at_least": 0})
    """Segment (token type) embeddings; 0 for none, pairs have 2."""
    full_sentences: bool = False
    """Full-sentence packing: concatenate as many texts of a batch as fit into length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs != "none" and self.segments == 1:
            raise UserError(
                f"pairs={self.pairs} needs two segments, got segments=1; use segments=2, or 0 "
                "for no segment embeddings."
            )
        if self.pairs != "none" and self.full_sentences:
            raise UserError(
                f"full_sentences=true does not apply to pairs={self.pairs}; use pairs=none, or "
                "full_sentences=false."
            )
        if self.pairs != "none" and self.length < 3:
            raise UserError(f"length must be at least 3 for sentence pairs, got {self.length}.")


@dataclass(frozen=True, kw_only=True)
class SentencePairConfig(MaskedLMConfig):
    """Settings of a masked language model with a sentence-pair objective."""

    pairs: SentencePairName = "next"
    """next: next-sentence prediction; order: sentence-order prediction; none: single texts."""
    segments: int = field(default=2, metadata={"at_least": 0})
    """Segment (token type) embeddings; 0 for none, pairs have 2."""


def build_masked_lm(
    config: MaskedLMConfig,
    vocabulary: Vocabulary,
    masking: MaskingStrategy | None = None,
    *,
    units: WordUnits | MentionUnits | None = None,
    spans_together: bool = False,
    sbo_positions: int = 0,
    memrecall: MemRecallConfig | None = None,
) -> BERT:
    """Build a BERT-style masked LM with the given masking strategy, else independent masking.

    `units` are set up by the tokenizer; `spans_together` replaces all tokens of a span alike;
    `sbo_positions` > 0 adds the span boundary objective with that many position embeddings.
    """
    require_mask_token(vocabulary)
    tokens = make_token_embedding(config, vocabulary)
    backbone = make_transformer(config, tokens)
    emission = make_softmax(config, vocabulary, tokens, bias=True, head=True)
    boundary = None
    if sbo_positions:
        boundary_softmax = make_softmax(config, vocabulary, tokens, bias=True)
        boundary = SpanBoundaryObjective(
            config.width, boundary_softmax, max_positions=sbo_positions
        )
    pair_task = SENTENCE_PAIR_TASKS.get(config.pairs)
    packing = FullSentences(length=config.length, pad=vocabulary.pad)
    objective = BERTObjective(
        vocabulary,
        masking or IndependentMasking(config.rate),
        MaskReplacement(vocabulary=vocabulary, per_span=spans_together),
        repeats=make_static_masking(config),
        full_sentences=packing if config.full_sentences else None,
        pairs=None if pair_task is None else pair_task(config.width, vocabulary),
        boundary=boundary,
        units=units,
    )
    return BERT(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=emission,
        objective=objective,
        memrecall=memrecall,
    )


def make_static_masking(config: MaskedLMConfig) -> StaticMasking | None:
    """Static masking if configured, else None."""
    if config.masking == "dynamic":
        return None
    return StaticMasking(seed=config.masking_seed, duplicates=config.duplicates)


def assemble_masked_lm(
    vocabulary: Vocabulary, backbone: Backbone, emission: Softmax, *, rate: float
) -> MaskedLM:
    """Masked LM of single texts with BERT's independent masking, over any encoder."""
    masking, replacement = IndependentMasking(rate), MaskReplacement(vocabulary=vocabulary)
    return MaskedLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=emission,
        objective=BERTObjective(vocabulary, masking, replacement),
    )
