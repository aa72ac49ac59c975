"""Transformer settings (encoder, decoder, pre- and post-norm), model sizes, training recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.relative_positions import exact_bucket_count
from lmlab.layers.sparse_pattern import DENSE, SparsePattern

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
    attention: str = DENSE
    """Self-attention: dense, or sparse by window:N, strided:N and global:N joined by +."""
    disabled_layers: tuple[int, ...] = ()
    """Layers to skip, counted from 1."""
    disabled_heads: tuple[str, ...] = ()
    """Heads whose output is zeroed, as layer.head, counted from 1: 2.4."""

    two_dimensional_positions: ClassVar[bool] = False
    """Whether a position is a pair of numbers (GLM)."""
    needs_dense_attention: ClassVar[str] = ""
    """Why attention can't be sparse, if it can't."""
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
        self._check_sparse_attention()
        self._check_disabled()

    def _check_attention_positions(self) -> None:
        """Rotary needs an even head width; max_distance must exceed the exact buckets."""
        if self.positions == "rotary" and head_width(self) % 2:
            raise UserError(
                f"head_width must be even for rotary positions, got {head_width(self)}."
            )
        exact = exact_bucket_count(self.buckets, bidirectional=not self.has_decoder)
        if self.positions == "buckets" and self.max_distance <= exact:
            raise UserError(
                f"max_distance must be larger than {exact} with {self.buckets} buckets, got "
                f"{self.max_distance}; use a larger one, or fewer buckets."
            )

    def _check_sparse_attention(self) -> None:
        """A pattern must be well-formed, and the system must support one."""
        pattern = SparsePattern.parse(self.attention)
        if pattern is not None and self.needs_dense_attention:
            raise UserError(
                f"attention={self.attention} does not apply here, since "
                f"{self.needs_dense_attention}; remove it."
            )

    def _check_disabled(self) -> None:
        """Disabled layers and heads must exist."""
        heads = parse_heads(self.disabled_heads)
        for layer in (*self.disabled_layers, *(layer for layer, _ in heads)):
            if not 1 <= layer <= self.layers:
                raise UserError(f"layer must be from 1 to {self.layers}, got {layer}.")
        for _, head in heads:
            if not 1 <= head <= self.heads:
                raise UserError(f"head must be from 1 to {self.heads}, got {head}.")


@dataclass(frozen=True, kw_only=True)
class PostNormConfig(TransformerConfig):
    """Settings of a Transformer with post-norm layers and normalised embeddings."""

    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    embedding_norm: bool = True
    """Whether to normalise the embedding output."""


@dataclass(frozen=True, kw_only=True)
class BERTEncoderConfig(PostNormConfig):
    """Settings of an encoder with the norms of BERT."""

    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """Settings of a decoder-only or encoder-decoder Transformer."""

    has_decoder = True


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(DecoderConfig):
    """Settings of an encoder-decoder."""

    tied_encoder_decoder: bool = False
    """Whether encoder and decoder share all layers but cross-attention (Raffel et al. 2020)."""


def head_width(config: TransformerConfig) -> int:
    return config.head_width or config.width // config.heads


def parse_heads(heads: tuple[str, ...]) -> list[tuple[int, int]]:
    """Parse `2.4` as layer 2, head 4."""
    parsed = []
    for text in heads:
        layer, head = map(parse_integer, str(text).partition(".")[::2])
        if layer is None or head is None:
            raise UserError(f"a head must be given as layer.head, such as 2.4, got {text!r}.")
        parsed.append((layer, head))
    return parsed


TINY: dict[str, Any] = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "length": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
"""Size for tests."""
BASE: dict[str, Any] = {"width": 768, "layers": 12, "heads": 12, "length": 512}
"""Size of BERT-base."""
ConfigType = TypeVar("ConfigType", bound=TransformerConfig)


def make_sizes(
    config: type[ConfigType],
    *,
    tiny: Mapping[str, Any] | None = None,
    small: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> dict[str, ConfigType]:
    """Sizes of a Transformer: TINY, the defaults and BASE, each with a system's own settings."""
    return {
        "tiny": config(**TINY | dict(tiny or {})),
        "small": config(**dict(small or {})),
        "base": config(**BASE | dict(base or {})),
    }


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
