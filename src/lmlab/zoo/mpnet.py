"""MPNet: masked and permuted pre-training; predict 15 % of the tokens in a random order.

    log p = E_z Σ_{t > c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}),  z a uniformly random permutation

BERT's masked tokens are independent, XLNet does not see the length of the text: here each
prediction sees the tokens before it in the order and masks at all other positions. Positions are
learned, plus relative buckets shared by all layers. At inference it is an encoder like BERT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.permuted_masking import MaskedPermutedLM
from lmlab.zoo import _transformer_config as parts
from lmlab.zoo._transformer import make_softmax, make_token_embedding
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
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="transformers' MPNet with the same weights: tests/parity/test_hf_mpnet.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.BERTEncoderConfig):
    """Settings of MPNet; attention has relative buckets in addition to `positions`."""

    positions: parts.PositionName = "learned"
    """Absolute positions: learned, sinusoidal, concatenated or none."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are predicted, the last in the order."""
    compensated: bool = True
    """Position compensation: see masks at all positions still to be predicted."""

    needs_dense_attention = "two-stream attention predicts in every order, and a window follows one"


SIZES = parts.make_sizes(Config)
RECIPES = parts.TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> MaskedLM:
    tokens = make_token_embedding(config, vocabulary)
    return MaskedLM(
        vocabulary=vocabulary,
        backbone=make_mpnet_backbone(config, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True, head=True),
        objective=MaskedPermutedLM(vocabulary, rate=config.rate, compensated=config.compensated),
    )
