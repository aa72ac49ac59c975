"""Set Transformer: a few inducing points read all words, and each word reads the points.

    ISAB(X) = MAB(X, MAB(I, X)),  MAB(X, Y) = norm(H + ff(H)),  H = norm(X + MultiAtt(X, Y))

Its cost is linear in the length, a Transformer's quadratic. It looks both ways, so it is trained as
BERT is. A set has no order: positions are added to the inputs, and with `positions=none` the hidden
states of permuted words are the permuted hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.filling import Filling
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masked import MaskedTokens
from lmlab.objectives.masking import EachToken, Replacement
from lmlab.zoo._inducing import SetConfig, make_set_transformer
from lmlab.zoo._transformer import TRANSFORMER_RECIPES, make_softmax, make_tokens

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Lee et al. 2019, Set Transformer",
    source="002 §3.5.3, on the cost of attention",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="torch.nn's attention with the same weights: tests/parity/test_set_transformer.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SetConfig):
    """Settings of the Set Transformer."""


SIZES = {
    "tiny": Config(
        width=16, layers=2, heads=2, length=64, points=4, dropout=0.0, attention_dropout=0.0
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512, points=32),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Filling:
    tokens = make_tokens(config, vocabulary)
    choice, replacement = EachToken(config.rate), Replacement(vocabulary=vocabulary)
    system = Filling(
        vocabulary=vocabulary,
        backbone=make_set_transformer(config, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=MaskedTokens(vocabulary, choice, replacement),
    )
    system.window = config.length - 1
    return system
