"""Transformers: shared settings and builders (blocks, stacks, positions, encoder-decoder)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import nn

from lmlab.backbones.encoder_decoder import TransformerEncoderDecoder
from lmlab.backbones.transformer import Transformer, TransformerStack
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.attention import CosineScores, DotProductScores, MultiHeadAttention
from lmlab.layers.feed_forward import ActivationName, FeedForward, GatedFeedForward
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.mlm_head import MLMHead
from lmlab.layers.positional_embedding import (
    ConcatenatedPositionalEmbedding,
    LearnedPositionalEmbedding,
    PairPositionalEmbedding,
    PositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from lmlab.layers.relative_positions import (
    AlibiBias,
    NezhaPositions,
    PositionBias,
    RelativePositionEncoding,
    RotaryEmbedding,
    ShawPositions,
    T5RelativeBias,
    TransformerXLPositions,
    exact_bucket_count,
)
from lmlab.layers.transformer_block import PostNorm, PreNorm, ResidualConnection, TransformerBlock
from lmlab.layers.weight_init import init_transformer_weights

PositionName = Literal[
    "learned",
    "sinusoidal",
    "concatenated",
    "pairs",
    "buckets",
    "shaw",
    "nezha",
    "transformer-xl",
    "alibi",
    "rotary",
    "none",
]
NormName = Literal["layer", "rms"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Settings of a Transformer."""

    width: int = field(default=256, metadata={"at_least": 1})
    """Hidden size."""
    layers: int = field(default=4, metadata={"at_least": 1})
    """Number of layers."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention heads per layer."""
    head_width: int = field(default=0, metadata={"at_least": 0})
    """Size of a head; 0 for width / heads."""
    ffn_width: int = field(default=0, metadata={"at_least": 0})
    """FFN hidden size; 0 for four times the width."""
    length: int = field(default=128, metadata={"at_least": 2})
    """Maximum input length in tokens."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and sublayer outputs."""
    attention_dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Dropout rate of attention weights."""
    positions: PositionName = "learned"
    """learned, sinusoidal, concatenated, pairs, buckets (T5), shaw, nezha, transformer-xl, alibi,
    rotary or none."""
    clip_distance: int = field(default=8, metadata={"at_least": 1})
    """Clipping distance of Shaw's and NEZHA's relative positions."""
    buckets: int = field(default=32, metadata={"at_least": 4})
    """Relative-position buckets (T5)."""
    max_distance: int = field(default=128, metadata={"at_least": 2})
    """Distance from which all positions share the last bucket (T5)."""
    clamp_length: int = field(default=0, metadata={"at_least": 0})
    """Clamping distance of Transformer-XL positions; 0 for none."""
    relative_segments: bool = False
    """Relative segment encodings in Transformer-XL positions (XLNet)."""
    pre_norm: bool = True
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    norm: NormName = "layer"
    """layer or rms."""
    norm_epsilon: float = field(default=1e-5, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    embedding_norm: bool = False
    """Whether to normalise the embedding output."""
    scaled_scores: bool = True
    """Whether attention scores are divided by √head_width; not in T5."""
    activation: ActivationName = "gelu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    gated_ffn: bool = False
    """Gated feed-forward layers (GLU)."""
    biases: bool = True
    """Whether linear layers have biases."""
    attention_biases: bool = True
    """Whether those of attention have them too; not in XLNet."""
    embedding_width: int = field(default=0, metadata={"at_least": 0})
    """Factorised embedding size, projected to width; 0 for width."""
    segments: int = field(default=0, metadata={"at_least": 0})
    """Segment (token type) embeddings; 0 for none."""
    shared_layers: bool = False
    """Cross-layer parameter sharing (ALBERT)."""
    tied: bool = True
    """Weight tying: output vectors are the input embeddings."""
    cosine_attention: bool = False
    """Cosine attention: normalise queries and keys."""
    temperature: float = field(default=1.0, metadata={"at_least": 0})
    """Attention temperature, dividing the scores; 0 for hard attention (argmax)."""
    disabled_layers: tuple[int, ...] = ()
    """Layers to skip, counted from 1."""
    disabled_heads: tuple[str, ...] = ()
    """Heads whose output is zeroed, as layer.head, counted from 1: 2.4."""

    two_dimensional_positions: ClassVar[bool] = False
    """Whether a position is a pair of numbers (GLM)."""
    has_decoder: ClassVar[bool] = False
    """Whether a stack is causal, so that all its buckets are for one direction."""

    def __post_init__(self) -> None:
        if not self.head_width and self.width % self.heads:
            raise UserError(f"width must be a multiple of heads ({self.heads}), got {self.width}.")
        if self.two_dimensional_positions != (self.positions == "pairs"):
            needed = "must be pairs" if self.two_dimensional_positions else "can't be pairs"
            dimensions = "two-dimensional" if self.two_dimensional_positions else "one-dimensional"
            raise UserError(
                f"positions {needed} in a model with {dimensions} positions, got {self.positions}."
            )
        self._check_attention_positions()
        self._check_silent()

    def _check_attention_positions(self) -> None:
        """Rotary needs an even head width; max_distance must exceed the exact buckets."""
        if self.positions == "rotary" and head_width(self) % 2:
            raise UserError(
                f"head_width must be even for rotary positions, got {head_width(self)}."
            )
        exact = exact_bucket_count(self.buckets, both_ways=not self.has_decoder)
        if self.positions == "buckets" and self.max_distance <= exact:
            raise UserError(
                f"max_distance must be larger than {exact} with {self.buckets} buckets, got "
                f"{self.max_distance}; use a larger one, or fewer buckets."
            )

    def _check_silent(self) -> None:
        """Disabled layers and heads must exist."""
        heads = parse_heads(self.disabled_heads)
        for layer in (*self.disabled_layers, *(layer for layer, _ in heads)):
            if not 1 <= layer <= self.layers:
                raise UserError(f"layer must be from 1 to {self.layers}, got {layer}.")
        for _, head in heads:
            if not 1 <= head <= self.heads:
                raise UserError(f"head must be from 1 to {self.heads}, got {head}.")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """Settings of a decoder-only or encoder-decoder Transformer."""

    has_decoder = True


TRANSFORMER_RECIPES = {
    # Short texts such as WordNet's glosses; results in docs/pretraining.md.
    "glosses": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "tokens_per_batch": 4096,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
    }
}


TRANSFORMER_MULTI30K = {
    # German to English on two cores; results in docs/translation.md.
    "width": 192,
    "layers": 3,
    "heads": 6,
    "ffn_width": 384,
    "dropout": 0.2,
    "label_smoothing": 0.1,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 400,
    "tokens_per_batch": 2048,
    "weight_decay": 0.01,
    "vocabulary_size": 8000,
    "grad_clip": 1.0,
    "epochs": 16,
    "average": 5,
}


def make_norm(config: TransformerConfig, width: int | None = None) -> nn.Module:
    """Layer norm or RMS norm."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(width or config.width, eps=config.norm_epsilon)


def make_attention(
    config: TransformerConfig, positions: RelativePositionEncoding | None = None
) -> MultiHeadAttention:
    """Multi-head attention with dot-product or cosine scores."""
    size = head_width(config)
    scores = (
        CosineScores(size, temperature=config.temperature)
        if config.cosine_attention
        else DotProductScores(size, temperature=config.temperature, scaled=config.scaled_scores)
    )
    return MultiHeadAttention(
        config.width,
        config.heads,
        head_width=size,
        scores=scores,
        positions=positions,
        dropout=config.attention_dropout,
        bias=config.biases and config.attention_biases,
    )


def head_width(config: TransformerConfig) -> int:
    return config.head_width or config.width // config.heads


def make_block(config: TransformerConfig, *, reads_source: bool = False) -> TransformerBlock:
    """One Transformer block; with cross-attention if `reads_source`."""
    feed = GatedFeedForward if config.gated_ffn else FeedForward
    return TransformerBlock(
        make_attention(config, attention_positions(config)),
        feed(
            config.width,
            config.ffn_width or 4 * config.width,
            activation=config.activation,
            bias=config.biases,
        ),
        make_residual(config),
        make_residual(config),
        cross_attention=make_attention(config) if reads_source else None,
        cross_attention_residual=make_residual(config) if reads_source else None,
    )


def make_residual(config: TransformerConfig) -> ResidualConnection:
    kind = PreNorm if config.pre_norm else PostNorm
    return kind(make_norm(config), config.dropout)


def attention_positions(config: TransformerConfig) -> RelativePositionEncoding | None:
    """Relative position encoding inside a layer's attention, if any."""
    each = head_width(config)
    known: dict[PositionName, Callable[[], RelativePositionEncoding]] = {
        "rotary": lambda: RotaryEmbedding(each),
        "shaw": lambda: ShawPositions(each, reach=config.clip_distance),
        "nezha": lambda: NezhaPositions(each, reach=config.clip_distance),
        "transformer-xl": lambda: TransformerXLPositions(
            config.width,
            config.heads,
            each,
            segments=config.relative_segments,
            max_distance=config.clamp_length,
        ),
    }
    make = known.get(config.positions)
    return None if make is None else make()


def score_bias(config: TransformerConfig, *, both_ways: bool) -> PositionBias | None:
    """Position bias on attention scores shared by all layers (ALiBi, T5), if any."""
    match config.positions:
        case "alibi":
            return AlibiBias(config.heads)
        case "buckets":
            return T5RelativeBias(
                config.heads,
                buckets=config.buckets,
                max_distance=config.max_distance,
                both_ways=both_ways,
            )
    return None


def input_positions(config: TransformerConfig, width: int) -> PositionalEmbedding | None:
    """Positional embedding of size `width` for the input, if any."""
    match config.positions:
        case "learned":
            return LearnedPositionalEmbedding(config.length, width)
        case "pairs":
            return PairPositionalEmbedding(config.length, width)
        case "sinusoidal":
            return SinusoidalPositionalEmbedding(width)
        case "concatenated":
            return ConcatenatedPositionalEmbedding(width)
    return None


def make_embedding(
    config: TransformerConfig, tokens: nn.Module, *, scale: float = 1.0
) -> InputEmbedding:
    """Input embedding: tokens, positions, segments, norm; `tokens` may be shared."""
    width = config.embedding_width or config.width
    joined = 2 * width if config.positions == "concatenated" else width
    return InputEmbedding(
        tokens,
        positions=input_positions(config, width),
        segments=nn.Embedding(config.segments, width) if config.segments else None,
        norm=make_norm(config, joined) if config.embedding_norm else None,
        projection=None if joined == config.width else nn.Linear(joined, config.width),
        dropout=config.dropout,
        scale=scale,
    )


def make_token_embedding(config: TransformerConfig, vocabulary: Vocabulary) -> nn.Embedding:
    return nn.Embedding(vocabulary.size, config.embedding_width or config.width)


def make_stack(
    config: TransformerConfig, *, reads_source: bool = False, both_ways: bool = True
) -> TransformerStack:
    """Stack of blocks; one repeated block under cross-layer parameter sharing."""
    count = 1 if config.shared_layers else config.layers
    return TransformerStack(
        [make_block(config, reads_source=reads_source) for _ in range(count)],
        times=config.layers // count,
        bias=score_bias(config, both_ways=both_ways),
        norm=make_norm(config) if config.pre_norm else None,
        disabled_layers=config.disabled_layers,
        disabled_heads=parse_heads(config.disabled_heads),
    )


def parse_heads(heads: tuple[str, ...]) -> list[tuple[int, int]]:
    """Parse `2.4` as layer 2, head 4."""
    found = []
    for text in heads:
        layer, head = map(parse_integer, str(text).partition(".")[::2])
        if layer is None or head is None:
            raise UserError(f"a head must be given as layer.head, such as 2.4, got {text!r}.")
        found.append((layer, head))
    return found


def make_transformer(
    config: TransformerConfig, tokens: nn.Embedding, *, both_ways: bool = True
) -> Transformer:
    """Encoder (`both_ways`) or decoder-only Transformer, initialised."""
    stack = make_stack(config, both_ways=both_ways)
    backbone = Transformer(make_embedding(config, tokens), stack, width=config.width)
    init_transformer_weights(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone


def make_encoder_decoder(
    config: TransformerConfig,
    tokens: nn.Embedding,
    *,
    source: nn.Embedding | None = None,
    decoder_layers: int | None = None,
    shared: bool = False,
    scaled: bool = False,
) -> TransformerEncoderDecoder:
    """Encoder-decoder Transformer; `source` is the encoder's embedding, if separate.

    `shared` shares all layers but cross-attention between encoder and decoder. `scaled`
    multiplies embeddings by √width (Vaswani et al. 2017).
    """
    scale = config.width**0.5 if scaled else 1.0
    encoder_stack = make_stack(config)
    settings = config if decoder_layers is None else replace(config, layers=decoder_layers)
    decoder_stack = make_stack(settings, reads_source=True, both_ways=False)
    if shared:
        share_layers(encoder_stack, decoder_stack)
    encoder = Transformer(
        make_embedding(config, source or tokens, scale=scale), encoder_stack, width=config.width
    )
    decoder = Transformer(
        make_embedding(config, tokens, scale=scale), decoder_stack, width=config.width
    )
    backbone = TransformerEncoderDecoder(encoder, decoder)
    init_transformer_weights(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone


def share_layers(encoder: TransformerStack, decoder: TransformerStack) -> None:
    """Share the encoder's self-attention and feed-forward layers with the decoder."""
    for read, write in zip(encoder.blocks, decoder.blocks, strict=True):
        assert isinstance(read, TransformerBlock) and isinstance(write, TransformerBlock)
        write.attention, write.feed_forward = read.attention, read.feed_forward
        write.self_attention_residual = read.self_attention_residual
        write.feed_forward_residual = read.feed_forward_residual


def make_softmax(
    config: TransformerConfig,
    vocabulary: Vocabulary,
    tokens: nn.Embedding,
    *,
    bias: bool = False,
    head: bool = False,
) -> Softmax:
    """Softmax output, optionally tied and after BERT's MLM head (`head`)."""
    width = config.embedding_width or config.width
    transform: nn.Module | None = None
    if head:
        transform = MLMHead(
            config.width, width, activation=config.activation, norm=make_norm(config, width)
        )
    elif width != config.width:
        transform = nn.Sequential(nn.Linear(config.width, width, bias=False))
    if transform is not None:
        init_transformer_weights(transform, config.width)
    tied = tokens if config.tied else None
    return Softmax(width, vocabulary, tied=tied, bias=bias, transform=transform)
