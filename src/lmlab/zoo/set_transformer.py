"""Set Transformer as a masked LM: attention through inducing points, linear in the length.

    ISAB(X) = MAB(X, MAB(I, X)),  MAB(X, Y) = norm(H + ff(H)),  H = norm(X + MultiAtt(X, Y))

A few inducing points attend to all tokens, and each token attends to the points; full attention is
quadratic. It is bidirectional and trained as BERT is. Positions are added to the inputs; with
`positions=none` it is permutation-equivariant.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.set_transformer import SetTransformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.block import Block, NoResidual
from lmlab.layers.inducing_points import InducingPointAttention
from lmlab.layers.stack import Stack
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.sampled_losses import MaskedLossConfig
from lmlab.zoo import _transformer as parts
from lmlab.zoo._masked_lm import assemble_masked_lm
from lmlab.zoo._transformer_config import (
    TRANSFORMER_RECIPES,
    TransformerConfig,
    make_sizes,
    parse_heads,
)

SET_POSITIONS = ("learned", "sinusoidal", "concatenated", "none")
"""Absolute positions only: inducing points have no position for relative ones."""

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Lee et al. 2019, Set Transformer",
    source="002 §3.5.3, on the cost of attention",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="torch.nn's attention with the same weights: tests/parity/test_set_transformer.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLossConfig, TransformerConfig):
    """Settings of the Set Transformer."""

    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    embedding_norm: bool = True
    """Whether to normalise the embedding output, to the scale of the inducing points."""
    points: int = field(default=16, metadata={"at_least": 1})
    """Inducing points of each layer."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""

    needs_dense_attention = "inducing points stand between all positions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in SET_POSITIONS:
            raise UserError(
                f"positions must be one of {', '.join(SET_POSITIONS)} with inducing points, got "
                f"{self.positions}."
            )
        if self.shared_layers:
            raise UserError("shared_layers does not apply to the Set Transformer; remove it.")


SIZES = make_sizes(Config, tiny={"points": 4}, base={"points": 32})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> MaskedLM:
    tokens = parts.make_token_embedding(config, vocabulary)
    embedding = parts.make_embedding(config, tokens)
    stack = Stack(
        [make_isab(config) for _ in range(config.layers)],
        norm=parts.make_norm(config) if config.pre_norm else None,
        disabled_layers=config.disabled_layers,
        disabled_heads=parse_heads(config.disabled_heads),
    )
    backbone = SetTransformer(embedding, stack, width=config.width)
    parts.initialised(config, backbone)
    emission = parts.make_softmax(config, vocabulary, tokens, bias=True)
    return assemble_masked_lm(vocabulary, backbone, emission, rate=config.rate)


def make_isab(config: Config) -> Block:
    """ISAB layer: inducing points attend to tokens, then tokens to the points."""
    gather, spread = parts.make_block(config), parts.make_block(config)
    mixer = InducingPointAttention(gather, spread, points=config.points, width=config.width)
    return Block(mixer, NoResidual())
