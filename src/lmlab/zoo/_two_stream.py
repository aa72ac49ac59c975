"""What the systems with two streams of attention share: how these are put together."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from lmlab.backbones.two_stream_transformer import (
    QueryVector,
    TwoStream,
)
from lmlab.core.errors import UserError
from lmlab.layers.weight_init import initialise
from lmlab.zoo._transformer import PositionName, TransformerConfig, make_embedding, make_stack

RELATIVE: tuple[PositionName, ...] = ("transformer-xl", "buckets", "shaw", "alibi", "rotary")
"""Positions that act on attention, by which a query without an input knows its place."""
TOLD: tuple[PositionName, ...] = ("learned", "sinusoidal", "concatenated", "none")
"""Positions that input vectors are told, which leave attention to the buckets."""


def check_relative(positions: PositionName) -> None:
    """A UserError where a query could not know its place."""
    if positions not in RELATIVE:
        raise UserError(
            f"a query knows its place by attention alone, so positions must be one of "
            f"{', '.join(RELATIVE)}, and {positions} came."
        )


def make_remembering(config: TransformerConfig, tokens: nn.Embedding, memory: int) -> TwoStream:
    """XLNet's: queries start as one learned vector, and text that goes on is remembered."""
    backbone = TwoStream(
        make_embedding(config, tokens),
        make_stack(config),
        width=config.width,
        start=QueryVector(config.width, dropout=config.dropout),
        memory=memory,
        stretch=config.length,
    )
    initialise(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone


def make_compensated(config: TransformerConfig, tokens: nn.Embedding) -> TwoStream:
    """MPNet's: queries start as the masks, and buckets of distances stand beside the positions."""
    if config.positions not in TOLD:
        raise UserError(
            f"attention has buckets of distances already, so positions must be one of "
            f"{', '.join(TOLD)}, and {config.positions} came."
        )
    stack = make_stack(replace(config, positions="buckets"))
    backbone = TwoStream(make_embedding(config, tokens), stack, width=config.width)
    initialise(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone
