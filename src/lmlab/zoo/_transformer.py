"""Transformer builders: attention, positions, blocks, embeddings, encoder-decoder, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from torch import nn

from lmlab.backbones.encoder_decoder import PointerEncoderDecoder, TransformerEncoderDecoder
from lmlab.backbones.transformer import Transformer
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.attention import CosineScores, DotProductScores, MultiHeadAttention
from lmlab.layers.block import Block, PostNorm, PreNorm, SublayerConnection
from lmlab.layers.feed_forward import FeedForward, GatedFeedForward, MLMHead
from lmlab.layers.input_embedding import (
    ConcatenatedPositionalEmbedding,
    InputEmbedding,
    LearnedPositionalEmbedding,
    PairPositionalEmbedding,
    PositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from lmlab.layers.pointer import Pointer
from lmlab.layers.relative_positions import (
    AlibiBias,
    NezhaPositions,
    PositionBias,
    RelativePositionEncoding,
    RotaryEmbedding,
    ShawPositions,
    T5RelativeBias,
    TransformerXLPositions,
)
from lmlab.layers.sparse_attention import SparseAttention
from lmlab.layers.sparse_pattern import SparsePattern
from lmlab.layers.stack import Stack
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.zoo._transformer_config import PositionName, TransformerConfig, head_width, parse_heads

ModuleType = TypeVar("ModuleType", bound=nn.Module)


def make_norm(config: TransformerConfig, width: int | None = None) -> nn.Module:
    """Layer norm or RMS norm."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(width or config.width, eps=config.norm_epsilon)


def make_scores(config: TransformerConfig) -> DotProductScores:
    """Dot-product or cosine scores."""
    size = head_width(config)
    if config.cosine_attention:
        return CosineScores(size, temperature=config.temperature)
    return DotProductScores(size, temperature=config.temperature, scaled=config.scaled_scores)


def make_attention(
    config: TransformerConfig,
    positions: RelativePositionEncoding | None = None,
    *,
    pattern: SparsePattern | None = None,
) -> MultiHeadAttention:
    """Multi-head attention with dot-product or cosine scores; dense without a `pattern`."""
    make = MultiHeadAttention if pattern is None else partial(SparseAttention, pattern=pattern)
    return make(
        config.width,
        config.heads,
        head_width=head_width(config),
        scores=make_scores(config),
        positions=positions,
        dropout=config.attention_dropout,
        bias=config.biases and config.attention_biases,
    )


def make_self_attention(config: TransformerConfig) -> MultiHeadAttention:
    """Self-attention with the position encoding inside it, dense or under a sparse pattern."""
    pattern = SparsePattern.parse(config.attention)
    return make_attention(config, attention_positions(config), pattern=pattern)


def make_block(config: TransformerConfig, *, reads_source: bool = False) -> Block:
    """One Transformer block; with cross-attention if `reads_source`."""
    return Block(
        make_self_attention(config),
        make_connection(config),
        make_feed_forward(config),
        make_connection(config),
        cross_attention=make_attention(config) if reads_source else None,
        cross_attention_connection=make_connection(config) if reads_source else None,
    )


def make_feed_forward(config: TransformerConfig) -> FeedForward:
    """The feed-forward layer of a block, gated or not."""
    kind = GatedFeedForward if config.gated_ffn else FeedForward
    inner = config.ffn_width or 4 * config.width
    return kind(config.width, inner, activation=config.activation, bias=config.biases)


def make_connection(config: TransformerConfig) -> SublayerConnection:
    """Pre-norm or post-norm connection of a sublayer."""
    kind = PreNorm if config.pre_norm else PostNorm
    return kind(make_norm(config), config.dropout)


def attention_positions(config: TransformerConfig) -> RelativePositionEncoding | None:
    """Relative position encoding inside a layer's attention, if any."""
    width = head_width(config)
    encodings: dict[PositionName, Callable[[], RelativePositionEncoding]] = {
        "rotary": lambda: RotaryEmbedding(width),
        "shaw": lambda: ShawPositions(width, clip_distance=config.clip_distance),
        "nezha": lambda: NezhaPositions(width, clip_distance=config.clip_distance),
        "transformer-xl": lambda: TransformerXLPositions(
            config.width,
            config.heads,
            width,
            segments=config.relative_segments,
            max_distance=config.clamp_length,
        ),
    }
    make = encodings.get(config.positions)
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
                bidirectional=both_ways,
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
        max_positions=config.length,
    )


def make_token_embedding(config: TransformerConfig, vocabulary: Vocabulary) -> nn.Embedding:
    return nn.Embedding(vocabulary.size, config.embedding_width or config.width)


def make_stack(
    config: TransformerConfig, *, reads_source: bool = False, both_ways: bool = True
) -> Stack:
    """Stack of blocks; one repeated block under cross-layer parameter sharing."""
    count = 1 if config.shared_layers else config.layers
    return Stack(
        [make_block(config, reads_source=reads_source) for _ in range(count)],
        times=config.layers // count,
        bias=score_bias(config, both_ways=both_ways),
        norm=make_norm(config) if config.pre_norm else None,
        disabled_layers=config.disabled_layers,
        disabled_heads=parse_heads(config.disabled_heads),
    )


def make_transformer(
    config: TransformerConfig, tokens: nn.Embedding, *, both_ways: bool = True
) -> Transformer:
    """Encoder (`both_ways`) or decoder-only Transformer, initialised."""
    stack = make_stack(config, both_ways=both_ways)
    return initialised(
        config, Transformer(make_embedding(config, tokens), stack, width=config.width)
    )


def initialised(config: TransformerConfig, backbone: ModuleType) -> ModuleType:
    """The backbone with random initial weights; residual projections are scaled under pre-norm."""
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
    return initialised(config, TransformerEncoderDecoder(encoder, decoder))


def add_pointer(
    backbone: TransformerEncoderDecoder, vocabulary: Vocabulary
) -> PointerEncoderDecoder:
    """The encoder-decoder with a pointer network to copy source tokens."""
    pointer = Pointer(backbone.width)
    init_transformer_weights(pointer, backbone.width)
    return PointerEncoderDecoder(backbone.encoder, backbone.decoder, pointer, vocabulary)


def share_layers(encoder: Stack, decoder: Stack) -> None:
    """Share the encoder's self-attention and feed-forward layers with the decoder."""
    for source, target in zip(encoder.all_blocks(), decoder.all_blocks(), strict=True):
        target.share_layers(source)


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
