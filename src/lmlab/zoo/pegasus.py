"""PEGASUS: gap-sentence generation; the decoder generates important sentences masked in the source.

    gaps = the sentences with the highest ROUGE-1 F1 against the rest,
    p(gaps | text with <mask> for each gap)

30 % of the sentences are gaps, at least one, selected by `choice`. Pre-norm, sinusoidal positions,
embeddings times √width. Texts of one sentence are cut into segments of `segment_length` tokens. A
text's score is p(s | <mask>), with its only sentence a gap: exact and normalised, but poor after
training with single sentences alone, unless `full_mask_rate` is set. Left out, as in the paper's
final model: masked tokens in addition to gaps; also the fifth of the gaps that its mixed model
leaves in the source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.feed_forward import ActivationName
from lmlab.models.denoising_seq2seq import DenoisingSeq2Seq
from lmlab.objectives.gap_sentences import GapSentenceGeneration, make_gap_selection
from lmlab.zoo import _denoising as parts
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, PositionName, make_sizes

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Zhang et al. 2020, PEGASUS: Pre-training with Extracted Gap-sentences",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("gap-sentences",),
    conditional=True,
    oracle="transformers' Pegasus with the same weights: tests/parity/test_hf_pegasus.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.DenoisingConfig):
    """Settings of PEGASUS."""

    positions: PositionName = "sinusoidal"
    """learned, sinusoidal, concatenated, buckets (T5), shaw, alibi, rotary or none."""
    scaled_embeddings: bool = True
    """Whether to multiply embeddings by √width."""
    activation: ActivationName = "relu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    choice: str = "ind-orig"
    """Gap sentence selection: ind-orig, ind-uniq, seq-orig, seq-uniq, random or lead."""
    rate: float = field(default=0.3, metadata={"at_least": 0, "at_most": 1})
    """Gap sentence ratio."""
    segment_length: int = field(default=4, metadata={"at_least": 1})
    """Pseudo-sentence length in tokens, for texts of one sentence."""


SIZES = make_sizes(Config, tiny={"full_mask_rate": 0.5})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> DenoisingSeq2Seq:
    objective = GapSentenceGeneration(
        parts.make_special_tokens(config, vocabulary),
        make_gap_selection(config.choice),
        sentences=parts.make_sentence_splitter(vocabulary),
        rate=config.rate,
        segment_length=config.segment_length,
        full_mask_rate=config.full_mask_rate,
    )
    return parts.make_denoising_seq2seq(config, vocabulary, objective)
