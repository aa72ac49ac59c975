"""T5: text-to-text encoder-decoder pre-trained by span corruption with sentinel tokens.

    loss = -log p(⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩ | Thank you ⟨X⟩ me to your party ⟨Y⟩ week)

Every task is text to text: a corpus of pairs gives the sources, with a task prefix. Relative
position buckets are shared by all layers; no biases, RMS pre-norm, unscaled attention scores,
scaled and tied output; `--recipe v1.1` has gated FFNs and an untied output. log_prob conditions on
a single sentinel that masks the whole text: poor after training with short spans alone, unless
`full_mask_rate` is set. `--set pairs=mask` masks spans of both texts of a pair. Token embeddings
start large, so steps of fixed size change them little: `--recipe adafactor` is the paper's choice,
whose steps are relative to the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.weight_init import OutputScaling, init_t5_weights
from lmlab.models.sentinel_seq2seq import SentinelSeq2Seq
from lmlab.objectives.span_corruption import RandomSpanMasking, SpanCorruption
from lmlab.objectives.text_to_text import PrefixLM, TextToTextObjective
from lmlab.zoo import _transformer_config as parts
from lmlab.zoo._transformer import make_encoder_decoder, make_token_embedding

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified "
    "Text-to-Text Transformer",
    source="002 §3.5, 004 §1.3.1.2",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens", "Infill"),
    objectives=("denoising", "prefix-lm", "language-modelling"),
    conditional=True,
    oracle="transformers' T5 with the same weights: tests/parity/test_hf_t5.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.EncoderDecoderConfig):
    """Settings of T5: network, objectives and special tokens."""

    positions: parts.PositionName = "buckets"
    """buckets (T5), sinusoidal, shaw, alibi, rotary or none."""
    norm: parts.NormName = "rms"
    """layer or rms."""
    norm_epsilon: float = field(default=1e-6, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    scaled_scores: bool = False
    """Whether attention scores are divided by √head_width; not in T5."""
    biases: bool = False
    """Whether linear layers have biases."""
    activation: ActivationName = "relu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    objective: Literal["denoising", "prefix-lm", "language-modelling"] = "denoising"
    """denoising (span corruption), prefix-lm or language-modelling."""
    rate: float = field(default=0.15, metadata={"above": 0, "below": 1})
    """Corruption rate; the paper tries 0.1, 0.15, 0.25 and 0.5."""
    mean_span_length: float = field(default=3.0, metadata={"at_least": 1})
    """Mean span length in tokens; the paper tries 2, 3, 5 and 10; 1 for single tokens."""
    free_placement: bool = True
    """Place spans anywhere; else a text starts unmasked and ends masked, as in the T5 code."""
    full_mask_rate: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts masked entirely, as log_prob needs; none in the paper."""
    pairs: Literal["write", "mask"] = "write"
    """Pairs of texts: write generates the second from the first; mask corrupts spans of both."""
    final_sentinel: bool = True
    """Whether a sentinel closes the last span, as in the paper; the T5 code has only the end."""
    sentinels: int = field(default=100, metadata={"at_least": 4})
    """Number of sentinel tokens; a text has fewer spans than that."""
    first_sentinel: int = field(default=-1, metadata={"at_least": -1})
    """Id of the first sentinel in a tokenizer that has them; -1 to append new ids."""
    sentinel_step: int = field(default=1, metadata={"at_least": -1, "at_most": 1})
    """Id step between sentinels; published checkpoints count down, by -1 from 32099."""
    decoder_start: int = field(default=-1, metadata={"at_least": -1})
    """Decoder start token id, 0 in published checkpoints; -1 for <s>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_width not in (0, self.width):
            raise UserError(
                "embedding_width does not apply to T5, whose token vectors have the layer width "
                f"{self.width}, got {self.embedding_width}; remove it."
            )


SIZES = parts.make_sizes(
    Config, tiny={"sentinels": 8, "rate": 0.5, "full_mask_rate": 0.5}, base={"ffn_width": 3072}
)
RECIPES = {
    **parts.TRANSFORMER_RECIPES,
    "v1.1": {"gated_ffn": True, "activation": "gelu-tanh", "tied": False},
    "adafactor": {"optimizer": "adafactor", "learning_rate": 0.03, "schedule": "cosine"},
}


def build(config: Config, vocabulary: Vocabulary) -> SentinelSeq2Seq:
    sentinels, decoder_vocabulary = SentinelTokens.allocate(
        vocabulary, config.sentinels, first=config.first_sentinel, step=config.sentinel_step
    )
    tokens = make_token_embedding(config, decoder_vocabulary)
    backbone = make_encoder_decoder(config, tokens, shared=config.tied_encoder_decoder)
    init_t5_weights(backbone, tokens)
    return SentinelSeq2Seq(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_emission(config, decoder_vocabulary, tokens),
        objective=make_objective(config, vocabulary, sentinels, decoder_vocabulary),
    )


def make_objective(
    config: Config,
    vocabulary: Vocabulary,
    sentinels: SentinelTokens,
    decoder_vocabulary: Vocabulary,
) -> TextToTextObjective:
    """The configured objective."""
    decoder_start = None if config.decoder_start < 0 else config.decoder_start
    if config.objective != "denoising":
        kind = PrefixLM if config.objective == "prefix-lm" else TextToTextObjective
        return kind(
            vocabulary,
            sentinels,
            decoder_start=decoder_start,
            decoder_vocabulary=decoder_vocabulary,
        )
    return SpanCorruption(
        vocabulary,
        sentinels,
        RandomSpanMasking(
            rate=config.rate, mean=config.mean_span_length, free_placement=config.free_placement
        ),
        full_mask_rate=config.full_mask_rate,
        mask_pairs=config.pairs == "mask",
        final_sentinel=config.final_sentinel,
        decoder_start=decoder_start,
        decoder_vocabulary=decoder_vocabulary,
    )


def make_emission(config: Config, decoder_vocabulary: Vocabulary, tokens: nn.Embedding) -> Softmax:
    """Softmax output: scaled and tied to the embedding, or untied."""
    if not config.tied:
        return Softmax(config.width, decoder_vocabulary, bias=False)
    scaled = OutputScaling(config.width**-0.5)
    return Softmax(config.width, decoder_vocabulary, tied=tokens, bias=False, transform=scaled)
