"""Log-bilinear model of two latent earlier words, both summed out over all pairs.

    p(s_i = k | s_<i) = Σ_{a,b} P_1(a | i) P_2(b | i) softmax_k(e(k) · h_{a,b} + b_k)
    h_{a,b} = W_1 e(s_a) + W_2 e(s_b)

a and b are among the last words, and can be the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.backbones.latent_parents import FactoredParents, LearnedPrior, UniformPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.pair_softmax import PairSoftmax
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Mnih and Hinton 2007 (log-bilinear)",
    source="003 DLM14",
    aliases=("DLM14",),
    protocols=("LogProb", "Step"),
    oracle="brute force over pairs of parents: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the model with two latent parents."""

    max_distance: int = field(default=5, metadata={"at_least": 2})
    """Maximum distance of the parents, in tokens."""
    prior: Literal["learned", "uniform"] = "learned"
    """Prior over each parent's position: learned or uniform."""


SIZES = {
    "tiny": Config(width=16, max_distance=3, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    kind = LearnedPrior if config.prior == "learned" else UniformPrior
    first, second = kind(config.max_distance), kind(config.max_distance)
    backbone = FactoredParents(embedding, first, second, dropout=config.dropout)
    emission = PairSoftmax(
        config.width, vocabulary, max_distance=config.max_distance, tied=embedding
    )
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary, emission)
