"""Bigram with latent states (aggregate Markov) whose source is any earlier word, summed out.

    p(s_i = k | s_<i) = Σ_{a<i} P(a | i) Σ_z P(z | s_a) P(k | z), P(a | i) a learned table
    P(z | s_a) = softmax_z(c_z · e(s_a) + b_z),  P(k | z) = softmax_k(e(k) · v_z)

Each earlier word's distribution over states is computed once, for all later positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LatentParents, LearnedPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission, MixtureStates
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (aggregate Markov models)",
    source="003 DLM13",
    aliases=("DLM13",),
    protocols=("LogProb", "Step"),
    oracle="brute force over parents and states: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the remix with latent alignment."""

    states: int = field(default=400, metadata={"at_least": 2})
    """K, latent states."""
    length: int = field(default=32, metadata={"at_least": 2})
    """Positions with their own prior; later ones share the last, over `length` words."""


SIZES = {
    "tiny": Config(width=16, states=8, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, states=1024, length=64, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = LatentParents(embedding, LearnedPrior(config.length), dropout=config.dropout)
    states = MixtureStates(config.states, config.width, vocabulary, tied=embedding)
    return parts.build_latent_choice_lm(
        backbone, embedding, vocabulary, MixtureEmission(config.width, states)
    )
