"""Star-Transformer as a masked LM: tokens attend to neighbours and a relay, the relay to all.

    h'_i = norm(relu(MultiAtt(h_i, [h_{i-1}; h_i; h_{i+1}; e_i; s])))
    s' = norm(relu(MultiAtt(s, [s; h'_1 … h'_T])))

Cost is linear in the length (a Transformer's is quadratic); distant tokens interact through the
relay. It is bidirectional and trained as BERT is. As in the paper the first and last tokens are
neighbours, and there is no residual and no feed-forward layer. The relay's last update, which the
paper uses to classify a text, is omitted, since no masked position uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.star_transformer import StarTransformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.block import Block, NoResidual, NormedReLU
from lmlab.layers.input_embedding import InputEmbedding, LearnedPositionalEmbedding
from lmlab.layers.stack import Stack
from lmlab.layers.star_attention import RelayAttention, RingAttention, StarAttention
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.sampled_losses import MaskedLossConfig
from lmlab.zoo._masked_lm import assemble_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Guo et al. 2019, Star-Transformer",
    source="002 §3.5.3, on the cost of attention",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="the update written out in loops: tests/parity/test_star_transformer.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLossConfig):
    """Settings of the Star-Transformer."""

    width: int = field(default=256, metadata={"at_least": 1})
    """Hidden size."""
    layers: int = field(default=4, metadata={"at_least": 1})
    """Number of layers, each updating tokens, then the relay."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention heads per layer."""
    neighbour_radius: int = field(default=1, metadata={"at_least": 0})
    """Neighbours on each side that a token attends to."""
    length: int = field(default=128, metadata={"at_least": 2})
    """Maximum input length in tokens."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and attention outputs."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"width must be a multiple of heads ({self.heads}), got {self.width}.")


SIZES = {
    "tiny": Config(width=16, layers=2, heads=2, length=64, dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> MaskedLM:
    tokens = nn.Embedding(vocabulary.size, config.width)
    positions = LearnedPositionalEmbedding(config.length, config.width)
    embedding = InputEmbedding(
        tokens, positions=positions, dropout=config.dropout, max_positions=config.length
    )
    # The last layer does not update the relay.
    layers = [make_layer(config, relay=n + 1 < config.layers) for n in range(config.layers)]
    backbone = StarTransformer(embedding, Stack(layers), width=config.width)
    init_transformer_weights(backbone, config.width)
    emission = Softmax(config.width, vocabulary, tied=tokens)
    return assemble_masked_lm(vocabulary, backbone, emission, rate=config.rate)


def make_layer(config: Config, *, relay: bool) -> Block:
    """One layer; `relay` says whether the relay is updated after the tokens."""
    width, heads, dropout = config.width, config.heads, config.dropout
    mixer = StarAttention(
        RingAttention(MultiHeadAttention(width, heads), radius=config.neighbour_radius),
        NormedReLU(nn.LayerNorm(width), dropout),
        relay=RelayAttention(MultiHeadAttention(width, heads)) if relay else None,
        relay_connection=NormedReLU(nn.LayerNorm(width), dropout) if relay else None,
    )
    return Block(mixer, NoResidual())
