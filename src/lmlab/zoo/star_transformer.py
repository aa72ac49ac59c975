"""Star-Transformer: each word looks at its neighbours and at a relay, which looks at all words.

    h'_i = norm(relu(MultiAtt(h_i, [h_{i-1}; h_i; h_{i+1}; e_i; s])))
    s' = norm(relu(MultiAtt(s, [s; h'_1 … h'_T])))

Its cost is linear in the length, a Transformer's quadratic; far words meet at the relay. It looks
both ways, so it is trained as BERT is. As in the paper the first and the last word are neighbours,
and there is neither a residual nor a feed-forward layer. The relay's last update, which the paper
reads off to classify a text, is not made, since no hidden word would read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from lmlab.core.card import Card
from lmlab.core.filling import Filling
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.objectives.masked import MaskedTokens
from lmlab.objectives.masking import EachToken, Replacement
from lmlab.zoo._star import StarConfig, make_star
from lmlab.zoo._transformer import TRANSFORMER_RECIPES

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Guo et al. 2019, Star-Transformer",
    source="002 §3.5.3, on the cost of attention",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="the update written out in loops: tests/parity/test_star_transformer.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(StarConfig):
    """Settings of the Star-Transformer."""


SIZES = {
    "tiny": Config(width=16, layers=2, heads=2, length=64, dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Filling:
    tokens = nn.Embedding(vocabulary.size, config.width)
    choice, replacement = EachToken(config.rate), Replacement(vocabulary=vocabulary)
    system = Filling(
        vocabulary=vocabulary,
        backbone=make_star(config, tokens),
        emission=Softmax(config.width, vocabulary, tied=tokens),
        objective=MaskedTokens(vocabulary, choice, replacement),
    )
    system.window = config.length - 1
    return system
