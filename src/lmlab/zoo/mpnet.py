"""MPNet: predict 15 % of the tokens in a random order, with masks for those still to come.

    log p = E_z Σ_{t > c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}),  z an order drawn evenly from all

BERT's hidden tokens don't know of each other, XLNet's don't know how long the text is: here each
prediction sees the tokens before it in the order, and where all the others stand. Positions are
learned and, besides, relative in buckets that all layers share. In use it is an encoder like BERT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.permuted_masking import MaskedPermutedLM
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    PositionName,
    TransformerConfig,
    make_softmax,
    make_token_embedding,
)
from lmlab.zoo._two_stream import make_mpnet_backbone

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Song et al. 2020, MPNet: Masked and Permuted Pre-training for Language Understanding",
    source="004 §1.3.1",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("permuted-masking",),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="transformers' MPNet with the same weights: tests/parity/test_hf_mpnet.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """Settings of MPNet; attention has buckets of distances besides what `positions` says."""

    positions: PositionName = "learned"
    """learned, sinusoidal, concatenated or none: what input vectors are told."""
    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are predicted, the last of the order."""


SIZES = {
    "tiny": Config(width=16, layers=2, heads=2, length=64, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> MaskedLM:
    tokens = make_token_embedding(config, vocabulary)
    system = MaskedLM(
        vocabulary=vocabulary,
        backbone=make_mpnet_backbone(config, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True, head=True),
        objective=MaskedPermutedLM(vocabulary, rate=config.rate),
    )
    system.window = config.length - 1
    return system
