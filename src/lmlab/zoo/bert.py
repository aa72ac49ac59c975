"""BERT: predict 15 % of the tokens from all the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.filling import Filling
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masked import MaskedTokens
from lmlab.objectives.masking import EachToken, Replacement
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    TransformerConfig,
    make_softmax,
    make_tokens,
    make_transformer,
)

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Devlin et al. 2019, BERT",
    source="002 §3.5, 004 §1.3.1",
    protocols=("LogProb", "Fill", "Encode"),
    objectives=("masked",),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="transformers' BERT with the same weights: tests/parity/test_hf_bert.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """Settings of BERT."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden and predicted."""


SIZES = {
    "tiny": Config(width=16, layers=2, heads=2, length=64, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Filling:
    tokens = make_tokens(config, vocabulary)
    choice, replacement = EachToken(config.rate), Replacement(vocabulary=vocabulary)
    system = Filling(
        vocabulary=vocabulary,
        backbone=make_transformer(config, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True, head=True),
        objective=MaskedTokens(vocabulary, choice, replacement),
    )
    system.window = config.length - 1
    return system
