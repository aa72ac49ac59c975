"""Two-stream Transformer backbones of XLNet and MPNet: shared builders."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from lmlab.backbones.two_stream_transformer import QueryVector, TwoStreamTransformer
from lmlab.core.errors import UserError
from lmlab.zoo._transformer import initialised, make_embedding, make_stack
from lmlab.zoo._transformer_config import PositionName, TransformerConfig

TWO_STREAM_RELATIVE_POSITIONS: tuple[PositionName, ...] = (
    "transformer-xl",
    "buckets",
    "shaw",
    "alibi",
    "rotary",
)
"""Relative positions inside attention, usable by a query stream without input tokens."""
ABSOLUTE_POSITIONS: tuple[PositionName, ...] = ("learned", "sinusoidal", "concatenated", "none")
"""Absolute positions added to the input; attention uses T5 buckets."""


def check_relative(positions: PositionName) -> None:
    """Raise a UserError unless positions are relative, as the query stream needs."""
    if positions not in TWO_STREAM_RELATIVE_POSITIONS:
        raise UserError(
            f"positions must be one of {', '.join(TWO_STREAM_RELATIVE_POSITIONS)} for two-stream "
            f"attention, got {positions}."
        )


def make_xlnet_backbone(
    config: TransformerConfig, tokens: nn.Embedding, memory: int
) -> TwoStreamTransformer:
    """XLNet backbone: a learned initial query vector, and segment-level memory."""
    backbone = TwoStreamTransformer(
        make_embedding(config, tokens),
        make_stack(config),
        width=config.width,
        start=QueryVector(config.width, dropout=config.dropout),
        memory=memory,
        segment_length=config.length,
    )
    return initialised(config, backbone)


def make_mpnet_backbone(config: TransformerConfig, tokens: nn.Embedding) -> TwoStreamTransformer:
    """MPNet backbone: queries start as masks; T5 buckets in addition to absolute positions."""
    if config.positions not in ABSOLUTE_POSITIONS:
        raise UserError(
            f"positions must be one of {', '.join(ABSOLUTE_POSITIONS)}, as attention already has "
            f"relative buckets, got {config.positions}."
        )
    stack = make_stack(replace(config, positions="buckets"))
    backbone = TwoStreamTransformer(make_embedding(config, tokens), stack, width=config.width)
    return initialised(config, backbone)
