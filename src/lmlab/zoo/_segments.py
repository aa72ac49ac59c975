"""How a segment-recurrent Transformer is put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.segment_recurrent import SegmentRecurrent
from lmlab.backbones.transformer import Stack
from lmlab.core.errors import UserError
from lmlab.layers.initialising import initialise
from lmlab.layers.relative_attention import RelativePositions
from lmlab.layers.transformer_block import Block
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    DecoderConfig,
    PositionName,
    make_embedding,
    make_stack,
)

RELATIVE: tuple[PositionName, ...] = (
    "transformer-xl",
    "buckets",
    "shaw",
    "nezha",
    "alibi",
    "rotary",
    "none",
)
"""Positions that mean the same in every segment."""


SEGMENT_RECIPES = {
    **TRANSFORMER_RECIPES,
    # Contiguous: an hour or so on two cores.
    "ptb": {
        "width": 200,
        "memory": 64,
        "memory_evaluation": 128,
        "dropout": 0.3,
        "learning_rate": 1.5e-3,
        "schedule": "cosine",
        "warmup_steps": 300,
        "lanes": 16,
        "span": 64,
        "weight_decay": 0.01,
        "epochs": 12,
    },
    # A few minutes. Many a question stands in another segment than what it asks for, but not all:
    # to tie a value to its key is learnt only where no border is between, as no gradient crosses.
    "recall": {
        "width": 32,
        "layers": 2,
        "heads": 2,
        "length": 16,
        "memory": 16,
        "memory_evaluation": 24,
        "pre_norm": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 5e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "lanes": 64,
        "span": 16,
        "tokens_per_batch": 1024,
        "weight_decay": 0.01,
        "epochs": 100,
    },
}


@dataclass(frozen=True, kw_only=True)
class SegmentConfig(DecoderConfig):
    """Settings of a Transformer that remembers the segments before."""

    length: int = field(default=128, metadata={"at_least": 1})
    """Places of a segment: a longer text, or span of contiguous text, is read in several. What is
    evaluated does not depend on it."""
    memory: int = field(default=128, metadata={"at_least": 0})
    """Places before a segment that all of it sees, in training."""
    memory_evaluation: int = field(default=256, metadata={"at_least": 0})
    """Places before its own that each place sees, in scoring and writing."""
    positions: PositionName = "transformer-xl"
    """transformer-xl, buckets, shaw, nezha, alibi, rotary or none: those that only know how far
    apart two places are, so that a segment and its memory agree."""
    untied_biases: bool = False
    """Whether each layer has its own u and v; else all share them, as the authors' do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in RELATIVE:
            raise UserError(
                f"a place of the memory was counted in another segment, so positions must be one "
                f"of {', '.join(RELATIVE)}, and {self.positions} came."
            )


def make_segment_recurrent(config: SegmentConfig, tokens: nn.Embedding) -> SegmentRecurrent:
    """The layers over embeddings times √width, with their first weights."""
    stack = make_stack(config, both_ways=False)
    backbone = SegmentRecurrent(
        make_embedding(config, tokens, scale=config.width**0.5),
        stack,
        width=config.width,
        segment=config.length,
        memory=config.memory,
        memory_evaluation=config.memory_evaluation,
    )
    initialise(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    if not config.untied_biases:
        share_biases(stack)
    return backbone


def share_biases(stack: Stack) -> None:
    """Let all layers have the u and v of the first."""
    first: RelativePositions | None = None
    for block in stack.blocks:
        assert isinstance(block, Block)
        positions = block.attention.positions
        if not isinstance(positions, RelativePositions):
            return
        first = first or positions
        positions.content_bias, positions.position_bias = first.content_bias, first.position_bias
