"""T5's settings, the objective that they name, and its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.core.errors import UserError
from lmlab.core.sentinels import Sentinels
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.unscaled import Scaled
from lmlab.objectives.sentinel_spans import RandomSpans, SentinelSpans
from lmlab.objectives.text_to_text import PrefixText, TextToText
from lmlab.zoo._transformer import DecoderConfig, NormName, PositionName


@dataclass(frozen=True, kw_only=True)
class T5Config(DecoderConfig):
    """Settings of T5: its network, its objectives and its symbols."""

    positions: PositionName = "buckets"
    """buckets (T5), sinusoidal, shaw, alibi, rotary or none."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_width not in (0, self.width):
            raise UserError(
                f"T5's token vectors are as wide as its layers, {self.width}, and embedding_width="
                f"{self.embedding_width} came; leave it out."
            )


def make_objective(
    config: T5Config, vocabulary: Vocabulary, sentinels: Sentinels, written: Vocabulary
) -> TextToText:
    """The objective that the config names."""
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


def make_emission(config: T5Config, written: Vocabulary, tokens: nn.Embedding) -> Softmax:
    """The output: scaled and tied to the embedding, or with vectors of its own."""
    if not config.tied:
        return Softmax(config.width, written, bias=False)
    scaled = Scaled(config.width**-0.5)
    return Softmax(config.width, written, tied=tokens, bias=False, transform=scaled)
