"""Llama: decoder-only Transformer with rotary positions, SwiGLU and grouped-query attention.

    x ← x + GQA(rms(x)),  x ← x + W_2 (silu(W_1 rms(x)) · W_3 rms(x)),
    p(s_{t+1} = k | s_≤t) = softmax_k(o_k · rms(x_t))

RMS pre-norm, no biases; the KV cache holds the shared key and value heads alone. Its relatives are
settings: `qkv_biases=true` (Qwen2), `query_key_norm=true` (Qwen3), `attention=window:4096`
(Mistral), `tied=false` (Llama 1 to 3; SmolLM is tied), `rotary_scaling=llama3:8:1:4:8192` (Llama
3.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.block import Block
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.grouped_attention import GroupedQueryAttention, SparseGroupedQueryAttention
from lmlab.layers.relative_positions import RelativePositionEncoding, RotaryEmbedding
from lmlab.layers.rotary_scaling import UNSCALED, parse_rotary_scaling
from lmlab.layers.sparse_pattern import SparsePattern
from lmlab.layers.stack import Stack
from lmlab.models.causal_lm import CausalLM
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _transformer as parts
from lmlab.zoo._transformer_config import (
    TRANSFORMER_RECIPES,
    DecoderConfig,
    NormName,
    PositionName,
    head_width,
    make_sizes,
    parse_heads,
)

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Touvron et al. 2023, LLaMA: Open and Efficient Foundation Language Models; Grattafiori "
    "et al. 2024; Jiang et al. 2023, Mistral 7B; Yang et al. 2024, Qwen2; Yang et al. 2025, Qwen3",
    source="",
    aliases=("mistral", "qwen2", "qwen3", "smollm"),
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="transformers' Llama, Mistral, Qwen2 and Qwen3 with the same weights: "
    "tests/parity/test_hf_llama.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, DecoderConfig):
    """Settings of Llama and its relatives."""

    ffn_width: int = field(default=688, metadata={"at_least": 0})
    """FFN hidden size, 8/3 of the width in the paper; 0 for four times the width."""
    positions: PositionName = "rotary"
    """rotary, learned, sinusoidal, concatenated, buckets (T5), shaw, nezha, transformer-xl, alibi
    or none."""
    norm: NormName = "rms"
    """layer or rms."""
    activation: ActivationName = "silu"
    """gelu, gelu-tanh, relu, silu or tanh."""
    gated_ffn: bool = True
    """Gated feed-forward layers (GLU)."""
    biases: bool = False
    """Whether linear layers have biases."""
    key_value_heads: int = field(default=2, metadata={"at_least": 0})
    """Heads of keys and values, shared by the query heads; 0 for one per query head."""
    qkv_biases: bool = False
    """Whether queries, keys and values have biases where other layers have none (Qwen2)."""
    query_key_norm: bool = False
    """QK norm: RMS norm of each head's queries and keys (Qwen3)."""
    rotary_base: float = field(default=10_000.0, metadata={"above": 0})
    """Base of the rotary frequencies (rope theta)."""
    rotary_scaling: str = UNSCALED
    """Scaling of the rotary frequencies: none, linear:FACTOR, or llama3:FACTOR:LOW:HIGH:LENGTH."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_value_heads and self.heads % self.key_value_heads:
            raise UserError(
                f"heads must be a multiple of key_value_heads ({self.key_value_heads}), got "
                f"{self.heads}."
            )
        if parse_rotary_scaling(self.rotary_scaling) and self.positions != "rotary":
            raise UserError(
                f"rotary_scaling={self.rotary_scaling} does not apply to {self.positions} "
                "positions; remove it."
            )


SIZES = make_sizes(
    Config,
    tiny={"ffn_width": 40, "key_value_heads": 1},
    base={"length": 2048, "ffn_width": 2048, "key_value_heads": 4},
)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> CausalLM:
    tokens = parts.make_token_embedding(config, vocabulary)
    backbone = Transformer(
        parts.make_embedding(config, tokens), make_stack(config), width=config.width
    )
    return CausalLM(
        vocabulary=vocabulary,
        backbone=parts.initialised(config, backbone),
        # Sampled losses need a bias, so that scores of rare tokens can start low.
        emission=parts.make_softmax(
            config, vocabulary, tokens, bias=config.objective != "next-token"
        ),
        objective=NextToken(),
    )


def make_stack(config: Config) -> Stack:
    """Stack of blocks with grouped-query attention."""
    count = 1 if config.shared_layers else config.layers
    blocks = [
        Block(
            make_grouped_attention(config),
            parts.make_connection(config),
            parts.make_feed_forward(config),
            parts.make_connection(config),
        )
        for _ in range(count)
    ]
    return Stack(
        blocks,
        times=config.layers // count,
        bias=parts.score_bias(config, both_ways=False),
        norm=parts.make_norm(config) if config.pre_norm else None,
        disabled_layers=config.disabled_layers,
        disabled_heads=parse_heads(config.disabled_heads),
    )


def make_grouped_attention(config: Config) -> GroupedQueryAttention:
    """Grouped-query attention, dense or under a sparse pattern."""
    pattern = SparsePattern.parse(config.attention)
    make = (
        GroupedQueryAttention
        if pattern is None
        else partial(SparseGroupedQueryAttention, pattern=pattern)
    )
    size, biases = head_width(config), config.biases and config.attention_biases

    def norm() -> nn.Module | None:
        return nn.RMSNorm(size, eps=config.norm_epsilon) if config.query_key_norm else None

    return make(
        config.width,
        config.heads,
        head_width=size,
        key_value_heads=config.key_value_heads or config.heads,
        query_norm=norm(),
        key_norm=norm(),
        scores=parts.make_scores(config),
        positions=make_positions(config),
        dropout=config.attention_dropout,
        bias=biases or config.qkv_biases,
        output_bias=biases,
    )


def make_positions(config: Config) -> RelativePositionEncoding | None:
    """The position encoding inside a layer's attention, if any."""
    if config.positions != "rotary":
        return parts.attention_positions(config)
    scaling = parse_rotary_scaling(config.rotary_scaling)
    return RotaryEmbedding(head_width(config), base=config.rotary_base, scaling=scaling)
