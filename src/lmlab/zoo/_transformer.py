"""What the Transformers share: their settings and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import nn

from lmlab.backbones.encoder_decoder import TransformerEncoderDecoder
from lmlab.backbones.transformer import Transformer, TransformerStack
from lmlab.core.errors import UserError
from lmlab.core.integer_parsing import parse_integer
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
    """Numbers in a hidden state."""
    layers: int = field(default=4, metadata={"at_least": 1})
    """Blocks stacked on each other."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention functions side by side in each layer."""
    head_width: int = field(default=0, metadata={"at_least": 0})
    """Numbers of a head's query; 0 for width / heads."""
    ffn_width: int = field(default=0, metadata={"at_least": 0})
    """Units of the feed-forward layers; 0 for four times the width."""
    length: int = field(default=128, metadata={"at_least": 2})
    """The longest input that it takes at once."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Share of embeddings and sublayers' outputs set to zero in training."""
    attention_dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Share of attention weights set to zero in training."""
    positions: PositionName = "learned"
    """learned, sinusoidal, concatenated, pairs, buckets (T5), shaw, nezha, transformer-xl, alibi,
    rotary or none."""
    clip_distance: int = field(default=8, metadata={"at_least": 1})
    """Distance beyond which Shaw's and NEZHA's positions are clipped."""
    buckets: int = field(default=32, metadata={"at_least": 4})
    """Buckets of distances, where positions are buckets."""
    max_distance: int = field(default=128, metadata={"at_least": 2})
    """Distance from which on all fall into the last bucket."""
    clamp_length: int = field(default=0, metadata={"at_least": 0})
    """Distance beyond which Transformer-XL's positions are all alike; 0 for none."""
    relative_segments: bool = False
    """Whether Transformer-XL's positions ask if two places are of one segment (XLNet)."""
    pre_norm: bool = True
    """Norm before each sublayer, and one at the end; else after each."""
    norm: NormName = "layer"
    """layer or rms."""
    norm_epsilon: float = field(default=1e-5, metadata={"at_least": 0})
    """What norms add to the variance."""
    embedding_norm: bool = False
    """Whether a norm stands after the embedding."""
    scaled_scores: bool = True
    """Whether attention divides its products by the root of the head's width; T5 does not."""
    activation: ActivationName = "gelu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    gated_ffn: bool = False
    """Whether the units of the feed-forward layers pass through gates."""
    biases: bool = True
    """Whether linear maps have biases."""
    attention_biases: bool = True
    """Whether those of attention have them too; XLNet's have none."""
    embedding_width: int = field(default=0, metadata={"at_least": 0})
    """Numbers in a token's vector, widened by a matrix where fewer than width; 0 for width."""
    segments: int = field(default=0, metadata={"at_least": 0})
    """Kinds of segments that the input tells apart; 0 for none."""
    shared_layers: bool = False
    """Whether all layers have the same parameters (ALBERT)."""
    tied: bool = True
    """Whether the output vectors are the input embeddings."""
    cosine_attention: bool = False
    """Normalised queries and keys: attention by direction alone (001)."""
    temperature: float = field(default=1.0, metadata={"at_least": 0})
    """Divides attention's scores; 0 is the hard limit, all weight on the best."""
    disabled_layers: tuple[int, ...] = ()
    """Layers that are passed by, counted from 1."""
    disabled_heads: tuple[str, ...] = ()
    """Heads whose output counts as zero, as layer.head, each counted from 1: 2.4."""

    two_dimensional_positions: ClassVar[bool] = False
    """Whether the objective tells each place by two numbers (GLM)."""
    has_decoder: ClassVar[bool] = False
    """Whether a stack of it looks back alone, so that all its buckets are for one direction."""

    def __post_init__(self) -> None:
        if not self.head_width and self.width % self.heads:
            raise UserError(
                f"width {self.width} can't be shared among {self.heads} heads; give a multiple."
            )
        if self.two_dimensional_positions != (self.positions == "pairs"):
            needed = "must be pairs" if self.two_dimensional_positions else "can't be pairs"
            told = "two numbers" if self.two_dimensional_positions else "one number"
            raise UserError(
                f"this system tells a place by {told}, so its positions {needed}, and "
                f"{self.positions} came."
            )
        self._check_attention_positions()
        self._check_silent()

    def _check_attention_positions(self) -> None:
        """Rotary turns numbers in pairs; buckets that grow follow those of one distance each."""
        if self.positions == "rotary" and head_width(self) % 2:
            raise UserError(
                f"rotary positions turn the numbers of a head in pairs, and it has "
                f"{head_width(self)}; give an even head_width."
            )
        exact = exact_bucket_count(self.buckets, both_ways=not self.has_decoder)
        if self.positions == "buckets" and self.max_distance <= exact:
            raise UserError(
                f"with {self.buckets} buckets each distance below {exact} has its own, so "
                f"max_distance "
                f"must be larger than {exact}, and {self.max_distance} came; give a larger one, or "
                "fewer buckets."
            )

    def _check_silent(self) -> None:
        """What is silenced must be there."""
        heads = parse_heads(self.disabled_heads)
        for layer in (*self.disabled_layers, *(layer for layer, _ in heads)):
            if not 1 <= layer <= self.layers:
                raise UserError(f"there are layers 1 to {self.layers}, and {layer} came.")
        for _, head in heads:
            if not 1 <= head <= self.heads:
                raise UserError(f"there are heads 1 to {self.heads}, and {head} came.")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """Settings of a Transformer that has a decoder, alone or behind an encoder."""

    has_decoder = True


TRANSFORMER_RECIPES = {
    # Short texts such as WordNet's glosses: docs/pretraining.md has what it reaches.
    "glosses": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "tokens_per_batch": 4096,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
    },
}


TRANSFORMER_MULTI30K = {
    # German to English on two cores: docs/translation.md has what it reaches.
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
    """A norm of the config's kind."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(width or config.width, eps=config.norm_epsilon)


def make_attention(
    config: TransformerConfig, positions: RelativePositionEncoding | None = None
) -> MultiHeadAttention:
    """Attention by the config's scores."""
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
    """One layer; with attention to a source where it is a decoder's."""
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
    """What a layer's attention knows of positions."""
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
    """What all layers add to their scores."""
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
    """What tells input vectors of `width` numbers where they stand."""
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
    """The way from tokens to the first layer; `tokens` may be shared with another part."""
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
    """All layers; one block many times over where they share their parameters."""
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
    """`2.4` as layer 2, head 4."""
    found = []
    for text in heads:
        layer, head = map(parse_integer, str(text).partition(".")[::2])
        if layer is None or head is None:
            raise UserError(f"a head is given as layer.head, such as 2.4, and {text!r} came.")
        found.append((layer, head))
    return found


def make_transformer(
    config: TransformerConfig, tokens: nn.Embedding, *, both_ways: bool = True
) -> Transformer:
    """An encoder (which looks both ways) or a decoder without a source, with its first weights."""
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
    """Both, over one embedding, or with one of its own for the encoder (`source`).

    `shared`: the decoder's layers are the encoder's, but for looking at the source. `scaled`
    multiplies embeddings by √width, as Vaswani et al. do.
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
    """Let the decoder's layers use the encoder's attention and feed-forward parts."""
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
    """The emission: tied to the embedding, and behind BERT's prediction head, where asked."""
    width = config.embedding_width or config.width
    transform: nn.Module | None = None
    if head:
        transform = MLMHead(
            config.width,
            width,
            activation=config.activation,
            norm=make_norm(config, width),
        )
    elif width != config.width:
        transform = nn.Sequential(nn.Linear(config.width, width, bias=False))
    if transform is not None:
        init_transformer_weights(transform, config.width)
    tied = tokens if config.tied else None
    return Softmax(width, vocabulary, tied=tied, bias=bias, transform=transform)
