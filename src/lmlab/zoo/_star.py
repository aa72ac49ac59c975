"""What the Star-Transformer is put together from."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.star import StarLayer, StarTransformer
from lmlab.core.errors import UserError
from lmlab.layers.attention import Attention
from lmlab.layers.initialising import initialise
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.positions import LearnedPositions
from lmlab.layers.star import RelayAttention, RingAttention
from lmlab.zoo._sampled import MaskedSampledConfig


@dataclass(frozen=True, kw_only=True)
class StarConfig(MaskedSampledConfig):
    """Settings of the Star-Transformer."""

    width: int = field(default=256, metadata={"at_least": 1})
    """Numbers in a hidden state."""
    layers: int = field(default=4, metadata={"at_least": 1})
    """Rounds in which the words and then the relay are updated."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention functions side by side in each layer."""
    reach: int = field(default=1, metadata={"at_least": 0})
    """Neighbours on each side that a word looks at."""
    length: int = field(default=128, metadata={"at_least": 2})
    """The longest input that it takes at once."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Share of embeddings and of attention's outputs set to zero in training."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden and predicted."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(
                f"width {self.width} can't be shared among {self.heads} heads; give a multiple."
            )


def make_star(config: StarConfig, tokens: nn.Embedding) -> StarTransformer:
    """The backbone with its first weights; the last layer has no relay of its own."""
    positions = LearnedPositions(config.length, config.width)
    embedding = InputEmbedding(tokens, positions=positions, dropout=config.dropout)
    layers = [make_layer(config, relay=n + 1 < config.layers) for n in range(config.layers)]
    backbone = StarTransformer(embedding, layers, width=config.width)
    initialise(backbone, config.width)
    return backbone


def make_layer(config: StarConfig, *, relay: bool) -> StarLayer:
    """One round; `relay` says whether the relay is updated after the words."""
    width, heads = config.width, config.heads
    return StarLayer(
        RingAttention(Attention(width, heads), reach=config.reach),
        nn.LayerNorm(width),
        relay=RelayAttention(Attention(width, heads)) if relay else None,
        relay_norm=nn.LayerNorm(width) if relay else None,
        dropout=config.dropout,
    )
