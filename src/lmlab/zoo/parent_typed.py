"""Latent-parent bigram with R latent relation types, one matrix each.

    p(s_i = k | s_<i) = Σ_{a<i} P(a | i) Σ_{r=1..R} π_r softmax_k(e(k) · W_r e(s_a) + b_k)

Different relations (subject and verb, noun and adjective) can have different matrices. The type is
independent of the parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LatentParents, LearnedPrior, TypedTransitions
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._latent_choice import (
    LATENT_CHOICE_RECIPES,
    LatentChoiceConfig,
    build_latent_choice_lm,
    new_embedding,
)

CARD = Card(
    family="latent",
    kind="exact",
    paper="003 (CATSMILE-9020), DLM6; cf. Saul and Pereira 1997 (mixed-order Markov models)",
    source="003 DLM6",
    aliases=("DLM6",),
    protocols=("LogProb", "Step"),
    oracle="brute force over parents and kinds: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(LatentChoiceConfig):
    """Settings of the latent-parent model with relation types."""

    length: int = field(default=32, metadata={"at_least": 2})
    """Positions with their own prior; later ones share the last, over `length` words."""
    types: int = field(default=2, metadata={"at_least": 1})
    """R, relation types."""


SIZES = {
    "tiny": Config(width=16, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, length=64, types=4, dropout=0.5),
}
RECIPES = LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = new_embedding(config, vocabulary)
    backbone = LatentParents(
        embedding,
        LearnedPrior(config.length),
        TypedTransitions(config.width, config.types),
        dropout=config.dropout,
    )
    return build_latent_choice_lm(backbone, embedding, vocabulary)
