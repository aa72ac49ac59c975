"""Transformer-XL: causal Transformer with segment-level recurrence and relative positions.

    score_ij = (W_q h_i + u) · W_kE h_j + (W_q h_i + v) · W_kR R_{i-j},  R sines and cosines
    h^n_τ+1 = Layer(query = h^n-1_τ+1, keys and values = [SG(h^n-1_τ), h^n-1_τ+1])

Contiguous text carries its memory from batch to batch (`bptt` tokens each) without gradient (SG); a
text longer than `length` is processed in several segments. Training and evaluation have separate
memory lengths. In evaluation each position attends to exactly `eval_memory_length` earlier ones, so
scores do not depend on how a text is segmented. Scores are divided by √head_width; u and v are per
head.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from lmlab.backbones.segment_recurrent import SegmentRecurrentTransformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.feed_forward import ActivationName
from lmlab.layers.relative_positions import TransformerXLPositions
from lmlab.layers.stack import Stack
from lmlab.models.causal_lm import CausalLM
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _transformer as parts
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, DecoderConfig, PositionName

RELATIVE_POSITIONS: tuple[PositionName, ...] = (
    "transformer-xl",
    "buckets",
    "shaw",
    "nezha",
    "alibi",
    "rotary",
    "none",
)
"""Relative positions, valid across segments."""


SEGMENT_RECIPES = {
    **TRANSFORMER_RECIPES,
    # Contiguous: an hour or so on two cores.
    "ptb": {
        "width": 200,
        "memory": 64,
        "eval_memory_length": 128,
        "dropout": 0.3,
        "learning_rate": 1.5e-3,
        "schedule": "cosine",
        "warmup_steps": 300,
        "stream_batch_size": 16,
        "bptt": 64,
        "weight_decay": 0.01,
        "epochs": 12,
    },
    # A few minutes. Many but not all queries are in another segment than their key: binding a
    # value to its key is learned only within a segment, as no gradient crosses the boundary.
    "recall": {
        "width": 32,
        "layers": 2,
        "heads": 2,
        "length": 16,
        "memory": 16,
        "eval_memory_length": 24,
        "pre_norm": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 5e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "stream_batch_size": 64,
        "bptt": 16,
        "tokens_per_batch": 1024,
        "weight_decay": 0.01,
        "epochs": 100,
    },
}


@dataclass(frozen=True, kw_only=True)
class SegmentRecurrentConfig(DecoderConfig):
    """Settings of a Transformer with segment-level recurrence."""

    length: int = field(default=128, metadata={"at_least": 1})
    """Segment length in tokens; longer texts, or BPTT chunks, are processed in several segments.
    Scores do not depend on it."""
    memory: int = field(default=128, metadata={"at_least": 0})
    """Memory length in training: cached positions before a segment."""
    eval_memory_length: int = field(default=256, metadata={"at_least": 0})
    """Memory length in evaluation: earlier positions that each position attends to."""
    positions: PositionName = "transformer-xl"
    """transformer-xl, buckets, shaw, nezha, alibi, rotary or none: relative positions, so that a
    segment and its memory agree."""
    untied_position_biases: bool = False
    """Whether each layer has its own u and v; else all share them, as in the authors' code."""

    needs_dense_attention = "segments with a memory bound what a position attends to"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in RELATIVE_POSITIONS:
            raise UserError(
                f"positions must be one of {', '.join(RELATIVE_POSITIONS)}, as memory has no "
                f"absolute positions, got {self.positions}."
            )


def make_segment_recurrent(
    config: SegmentRecurrentConfig, tokens: nn.Embedding
) -> SegmentRecurrentTransformer:
    """Segment-recurrent Transformer over embeddings times √width, initialised."""
    stack = parts.make_stack(config, both_ways=False)
    backbone = SegmentRecurrentTransformer(
        parts.make_embedding(config, tokens, scale=config.width**0.5),
        stack,
        width=config.width,
        segment=config.length,
        memory=config.memory,
        eval_memory_length=config.eval_memory_length,
    )
    parts.initialised(config, backbone)
    if not config.untied_position_biases:
        share_biases(stack)
    return backbone


def share_biases(stack: Stack) -> None:
    """Share the first layer's u and v with all layers."""
    first, *others = (block.attention.positions for block in stack.all_blocks())
    for positions in others:
        if isinstance(positions, TransformerXLPositions):
            assert isinstance(first, TransformerXLPositions)
            positions.share_biases(first)


CARD = Card(
    family="transformer",
    kind="exact",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length "
    "Context",
    source="004 §1.3.2",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="equation 3 by loops, full attention where the memory covers the past, transformers' "
    "XLNet with one direction: tests/parity/test_transformer_xl.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, SegmentRecurrentConfig):
    """Settings of Transformer-XL."""

    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    attention_biases: bool = False
    """Whether the linear layers of attention have biases."""
    activation: ActivationName = "relu"
    """gelu, gelu-tanh, relu, silu or tanh."""


TINY = Config(width=16, layers=2, heads=2, length=8, memory=8, eval_memory_length=16)
SIZES = {
    "tiny": replace(TINY, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    # The paper's standard model of WikiText-103.
    "base": Config(
        width=410,
        layers=16,
        heads=10,
        ffn_width=2100,
        length=150,
        memory=150,
        eval_memory_length=640,
    ),
}
RECIPES = SEGMENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> CausalLM:
    tokens = parts.make_token_embedding(config, vocabulary)
    return CausalLM(
        vocabulary=vocabulary,
        backbone=make_segment_recurrent(config, tokens),
        emission=parts.make_softmax(config, vocabulary, tokens, bias=True),
        objective=NextToken(),
    )
