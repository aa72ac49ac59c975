"""What the systems with two streams of attention share: how these are put together."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from lmlab.backbones.two_stream_transformer import (
    QueryVector,
    TwoStreamTransformer,
)
from lmlab.core.errors import UserError
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.zoo._transformer import PositionName, TransformerConfig, make_embedding, make_stack

TWO_STREAM_RELATIVE_POSITIONS: tuple[PositionName, ...] = (
    "transformer-xl",
    "buckets",
    "shaw",
    "alibi",
    "rotary",
)
"""Positions that act on attention, by which a query without an input knows its place."""
ABSOLUTE_POSITIONS: tuple[PositionName, ...] = ("learned", "sinusoidal", "concatenated", "none")
"""Positions that input vectors are told, which leave attention to the buckets."""


def check_relative(positions: PositionName) -> None:
    """A UserError where a query could not know its place."""
    if positions not in TWO_STREAM_RELATIVE_POSITIONS:
        raise UserError(
            f"a query knows its place by attention alone, so positions must be one of "
            f"{', '.join(TWO_STREAM_RELATIVE_POSITIONS)}, and {positions} came."
        )


def make_xlnet_backbone(
    config: TransformerConfig, tokens: nn.Embedding, memory: int
) -> TwoStreamTransformer:
    """XLNet's: queries start as one learned vector, and text that goes on is remembered."""
    backbone = TwoStreamTransformer(
        make_embedding(config, tokens),
        make_stack(config),
        width=config.width,
        start=QueryVector(config.width, dropout=config.dropout),
        memory=memory,
        stretch=config.length,
    )
    init_transformer_weights(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone


def make_mpnet_backbone(config: TransformerConfig, tokens: nn.Embedding) -> TwoStreamTransformer:
    """MPNet's: queries start as the masks, and buckets of distances stand beside the positions."""
    if config.positions not in ABSOLUTE_POSITIONS:
        raise UserError(
            f"attention has buckets of distances already, so positions must be one of "
            f"{', '.join(ABSOLUTE_POSITIONS)}, and {config.positions} came."
        )
    stack = make_stack(replace(config, positions="buckets"))
    backbone = TwoStreamTransformer(make_embedding(config, tokens), stack, width=config.width)
    init_transformer_weights(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone
