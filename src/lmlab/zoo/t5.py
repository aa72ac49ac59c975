"""T5: spans of a text are dropped, and the decoder writes them one after another.

    Thank you ⟨X⟩ me to your party ⟨Y⟩ week.  →  ⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩

Every task is text to text: a corpus of pairs gives it sources, with words at their front that tell
the task. Attention knows positions by buckets of distances, one table for all layers; no biases,
RMS norms before the sublayers, unscaled scores, the output scaled and tied; `--recipe v1.1` has
gated units and an output of its own. log_prob is that of everything being one blank: poor after
training with short spans alone, which `whole` mends. `--set pairs=mask` hides spans of both texts
of a pair, as 002 tells it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.blanks import BlankWriting, Sentinels
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.unscaled import Scaled, initialise_unscaled
from lmlab.objectives.sentinel_spans import RandomSpans, SentinelSpans
from lmlab.objectives.text_to_text import PrefixText, TextToText
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    NormName,
    PositionName,
    TransformerConfig,
    make_encoder_decoder,
    make_tokens,
)

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified "
    "Text-to-Text Transformer",
    source="002 §3.5, 004 §1.3.1.2",
    protocols=("LogProb", "Step", "Encode", "Infill"),
    objectives=("denoising", "prefix-lm", "language-modelling"),
    conditional=True,
    oracle="transformers' T5 with the same weights: tests/parity/test_hf_t5.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """Settings of T5."""

    positions: PositionName = "buckets"
    """buckets (T5), sinusoidal, shaw, alibi, rotary or none; learned ones where texts are short."""
    norm: NormName = "rms"
    """layer or rms."""
    norm_epsilon: float = field(default=1e-6, metadata={"at_least": 0})
    """What norms add to the variance."""
    scaled_scores: bool = False
    """Whether attention divides its products by the root of the head's width; T5 does not."""
    biases: bool = False
    """Whether linear maps have biases."""
    activation: ActivationName = "relu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    objective: Literal["denoising", "prefix-lm", "language-modelling"] = "denoising"
    """denoising (spans dropped), prefix-lm (the rest of a text) or language-modelling."""
    rate: float = field(default=0.15, metadata={"above": 0, "below": 1})
    """Share of the tokens that are hidden; the paper tries 0.1, 0.15, 0.25 and 0.5."""
    span_length: float = field(default=3.0, metadata={"at_least": 1})
    """Mean tokens of a span; the paper tries 2, 3, 5 and 10, and 1 is each token by itself."""
    anywhere: bool = True
    """Whether spans may lie anywhere; else a text begins shown and ends hidden, as in the code."""
    whole: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts that are hidden altogether, as its log_prob asks; the paper has none."""
    pairs: Literal["write", "mask"] = "write"
    """A pair of texts: write the second beside the first, or mask spans of both (002)."""
    final_sentinel: bool = True
    """Whether a sentinel closes the last span, as in the paper; the code has the end alone."""
    sentinels: int = field(default=100, metadata={"at_least": 4})
    """How many sentinels there are; a text has fewer spans than that."""
    first_sentinel: int = field(default=-1, metadata={"at_least": -1})
    """Id of the first sentinel in a tokeniser that has them; -1 appends ids of our own."""
    sentinel_step: int = field(default=1, metadata={"at_least": -1, "at_most": 1})
    """From a given sentinel to the next; published checkpoints count down, by -1 from 32099."""
    decoder_start: int = field(default=-1, metadata={"at_least": -1})
    """Id that the decoder begins with, 0 in published checkpoints; -1 for <s>."""


SIZES = {
    "tiny": Config(
        width=16,
        layers=2,
        heads=2,
        length=64,
        dropout=0.0,
        attention_dropout=0.0,
        sentinels=8,
        rate=0.5,
        whole=0.5,
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, inner=3072, length=512),
}
RECIPES = {
    **TRANSFORMER_RECIPES,
    "v1.1": {"gated": True, "activation": "gelu-tanh", "tied": False},
}


def build(config: Config, vocabulary: Vocabulary) -> BlankWriting:
    sentinels, written = Sentinels.of(
        vocabulary, config.sentinels, first=config.first_sentinel, step=config.sentinel_step
    )
    tokens = make_tokens(config, written)
    backbone = make_encoder_decoder(config, tokens)
    initialise_unscaled(backbone, tokens)
    scaled = Scaled(config.width**-0.5) if config.tied else None
    system = BlankWriting(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=Softmax(
            config.width,
            written,
            tied=tokens if config.tied else None,
            bias=False,
            transform=scaled,
        ),
        objective=make_objective(config, vocabulary, sentinels, written),
    )
    # The decoder is given the first sentinel beside the text.
    system.window = config.length - 1
    return system


def make_objective(
    config: Config, vocabulary: Vocabulary, sentinels: Sentinels, written: Vocabulary
) -> TextToText:
    begin = None if config.decoder_start < 0 else config.decoder_start
    if config.objective != "denoising":
        kind = PrefixText if config.objective == "prefix-lm" else TextToText
        return kind(vocabulary, sentinels, begin=begin, written=written)
    return SentinelSpans(
        vocabulary,
        sentinels,
        RandomSpans(rate=config.rate, mean=config.span_length, anywhere=config.anywhere),
        whole=config.whole,
        joined=config.pairs == "mask",
        final=config.final_sentinel,
        begin=begin,
        written=written,
    )
