"""Transformer: the encoder-decoder of Vaswani et al. 2017, with cross-attention to the source.

    p(s | x) = Π_t p(s_t | s_<t, x),  h = Decoder(s_<t, Encoder(x))

A corpus of pairs gives sources; without them it is a language model with an empty source.
Sinusoidal positions are added (`positions=concatenated` concatenates them).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.conditional_lm import ConditionalLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _transformer_config as parts
from lmlab.zoo._transformer import make_encoder_decoder, make_softmax, make_token_embedding

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    source="002 §3.5, 004 §1.2",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    conditional=True,
    oracle="transformers' Marian with the same weights: tests/parity/test_hf_marian.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, parts.EncoderDecoderConfig):
    """Settings of the encoder-decoder."""

    positions: parts.PositionName = "sinusoidal"
    """learned, sinusoidal, concatenated, buckets (T5), shaw, alibi, rotary or none."""
    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    scaled_embeddings: bool = True
    """Whether to multiply embeddings by √width."""
    label_smoothing: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Label smoothing: probability mass spread uniformly over all tokens in training."""


SIZES = parts.make_sizes(Config, base={"width": 512, "layers": 6, "heads": 8, "activation": "relu"})
RECIPES = {**parts.TRANSFORMER_RECIPES, "multi30k": parts.TRANSFORMER_MULTI30K}


def build(
    config: Config, vocabulary: Vocabulary, *, source: Vocabulary | None = None
) -> EncoderDecoderLM:
    tokens = make_token_embedding(config, vocabulary)
    source_tokens = None if source is None else make_token_embedding(config, source)
    backbone = make_encoder_decoder(
        config,
        tokens,
        source=source_tokens,
        shared=config.tied_encoder_decoder,
        scaled=config.scaled_embeddings,
    )
    return EncoderDecoderLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=ConditionalLM(vocabulary, source=source, smoothing=config.label_smoothing),
    )
