"""Log-bilinear model of N attention averages of earlier words, instead of the last N words.

    p(s_i = k | s_<i) = softmax_k(e(k) · Σ_{m=1..N} W_m b_m + b_k),  b_m = Σ_j P(j_m = j) e(s_j)
    P(j_m = j) ∝ P_m(j | i) exp(u_m · e(s_j)), P_m(j | i) a learned table

Mean field: each slot (attention head m) holds an average of the words it can choose, instead of one
at a time. Each slot has its own prior; with one prior for all, slots could not become the last N
words.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LearnedPrior
from lmlab.backbones.slots import Slots
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Bahdanau et al. 2015 (soft choice of a word)",
    source="003 DLM30",
    aliases=("DLM30",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="marginals and expected vectors by enumeration: tests/parity/test_slots.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, parts.LatentChoiceConfig):
    """Settings of the slots."""

    slots: int = field(default=5, metadata={"at_least": 1})
    """N, slots."""
    length: int = field(default=32, metadata={"at_least": 2})
    """Positions with their own prior; later ones share the last, over `length` words."""


SIZES = {
    "tiny": Config(width=16, slots=2, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, length=64, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    priors = [LearnedPrior(config.length) for _ in range(config.slots)]
    backbone = Slots(embedding, priors, dropout=config.dropout)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
