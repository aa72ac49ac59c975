"""Hybrid language model: attention and recurrence in turns, in one stack of blocks.

    x ← x + mixer_n(norm(x));  x ← x + feed_forward(norm(x));  p(next) = softmax(E norm(x))

Layer n has the n-th mixer of `mixers`, which is repeated until there is one for each layer:
`mixers=attention,min-gru,min-gru` with six layers is attention in layers 1 and 4. Recurrent layers
know the order, so that attention can do without positions (`positions=none`). Without attention the
state is carried through contiguous text of any length, and a text has no maximum length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from lmlab.backbones.hybrid import HybridBackbone
from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.block import Block
from lmlab.layers.sequence_mixer import SequenceMixer
from lmlab.layers.stack import Stack
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.causal_lm import CausalLM
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _transformer as parts
from lmlab.zoo._recurrent import CELL_NAMES, build_cell
from lmlab.zoo._transformer_config import (
    TRANSFORMER_RECIPES,
    DecoderConfig,
    NormName,
    PositionName,
    make_sizes,
    parse_heads,
)
from lmlab.zoo.transformer_xl import RELATIVE_POSITIONS

ATTENTION = "attention"
CAUSAL_MIXERS = (ATTENTION, *CELL_NAMES)
BIDIRECTIONAL_MIXERS = ("star", "inducing-points")
"""Mixers that need the whole sequence, so that they are none of a causal model."""

CARD = Card(
    family="hybrid",
    kind="exact",
    paper="Lieber et al. 2024, Jamba; De et al. 2024, Griffin (attention and recurrence in turns)",
    source="",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="gpt with attention alone and the same weights; torch.nn's GRU and attention in turns "
    "by hand: tests/parity/test_hybrid.py",
    example_commands=(
        "lmlab train hybrid --data grammar --size tiny --set mixers=min-gru,lstm --out RUN",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, DecoderConfig):
    """Settings of a hybrid."""

    mixers: tuple[str, ...] = (ATTENTION, "min-gru")
    """Mixer of each layer, repeated over the layers: attention, or a cell (rnn, linear, lstm,
    lstm-peephole, lstm-coupled, gru, gru-notes, gru-minimal, mgru, min-gru)."""
    positions: PositionName = "rotary"
    """Positions of attention: rotary, alibi, buckets, shaw, nezha, transformer-xl or none."""
    norm: NormName = "rms"
    """layer or rms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mixers:
            raise UserError(f"mixers must list at least one of {', '.join(CAUSAL_MIXERS)}.")
        for name in self.mixers:
            if name in BIDIRECTIONAL_MIXERS:
                raise UserError(
                    f"mixers must be causal, and {name} needs the whole text; use some of "
                    f"{', '.join(CAUSAL_MIXERS)}."
                )
            if name not in CAUSAL_MIXERS:
                raise unknown_name("mixer", name, CAUSAL_MIXERS)
        if self.positions not in RELATIVE_POSITIONS:
            raise UserError(
                f"positions must be one of {', '.join(RELATIVE_POSITIONS)} in a hybrid, got "
                f"{self.positions}."
            )
        if len(self.mixers) > self.layers:
            raise UserError(
                f"mixers must list at most one for each layer ({self.layers}), got "
                f"{len(self.mixers)}; use fewer, or --set layers={len(self.mixers)}."
            )
        if self.shared_layers:
            raise UserError("shared_layers does not apply to a hybrid; remove it.")

    @property
    def layer_mixers(self) -> list[str]:
        """The mixer of each layer."""
        return [self.mixers[layer % len(self.mixers)] for layer in range(self.layers)]


SIZES = make_sizes(Config)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> CausalLM:
    tokens = parts.make_token_embedding(config, vocabulary)
    has_attention = ATTENTION in config.layer_mixers
    stack = Stack(
        [make_hybrid_block(config, name) for name in config.layer_mixers],
        bias=parts.score_bias(config, both_ways=False) if has_attention else None,
        norm=parts.make_norm(config) if config.pre_norm else None,
        disabled_layers=config.disabled_layers,
        disabled_heads=parse_heads(config.disabled_heads),
    )
    backbone = HybridBackbone(parts.make_embedding(config, tokens), stack, width=config.width)
    initialise(config, backbone)
    return CausalLM(
        vocabulary=vocabulary,
        backbone=backbone,
        # Sampled losses need a bias, so that scores of rare tokens can start low.
        emission=parts.make_softmax(
            config, vocabulary, tokens, bias=config.objective != "next-token"
        ),
        objective=NextToken(),
    )


def make_hybrid_block(config: Config, name: str) -> Block:
    """A block with the named mixer and a feed-forward layer."""
    makers: dict[str, Callable[[], SequenceMixer]] = {
        ATTENTION: lambda: parts.make_self_attention(config)
    }
    make = makers.get(name) or partial(build_cell, name, config.width, config.width)
    return Block(
        make(),
        parts.make_connection(config),
        parts.make_feed_forward(config),
        parts.make_connection(config),
    )


def initialise(config: Config, backbone: HybridBackbone) -> None:
    """Transformer initialisation of all but the recurrent cells, which keep their own."""
    layers = config.layers if config.pre_norm else 0
    init_transformer_weights(backbone.embedding, config.width)
    for block in backbone.stack.all_blocks():
        sublayers = nn.ModuleDict()
        if isinstance(block.mixer, MultiHeadAttention):
            sublayers["attention"] = block.mixer
        if block.feed_forward is not None:
            sublayers["feed_forward"] = block.feed_forward
        init_transformer_weights(sublayers, config.width, layers=layers)
