"""Renewal model with K latent transition types: a unigram plus a mixture of K bigrams.

p(s_i | s_{i-1}) = λ Q(s_i) + (1 - λ) Σ_{r=1..K} π_r W_r(s_i | s_{i-1}),  λ = 1/2
Q = softmax_k(e(k) · q + b_k),  W_r = softmax_k(e(k) · W_r e(s_{i-1}) + b_k)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LatentParents, Renewal, TypedTransitions, UniformPrior
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
    paper="003 (CATSMILE-9020), DLM8; cf. Jelinek and Mercer 1980 (linear interpolation)",
    source="003 DLM8",
    aliases=("DLM8",),
    protocols=("LogProb", "Step"),
    oracle="brute force over kinds: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(LatentChoiceConfig):
    """Settings of the renewal model with transition types."""

    types: int = field(default=4, metadata={"at_least": 1})
    """K, transition types."""
    learned_weight: bool = False
    """Whether λ is learned, initialised to 1/2; else fixed."""


SIZES = {
    "tiny": Config(width=16, types=2, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, types=8, dropout=0.5),
}
RECIPES = LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = new_embedding(config, vocabulary)
    previous = LatentParents(
        embedding,
        UniformPrior(reach=1),
        TypedTransitions(config.width, config.types),
        dropout=config.dropout,
    )
    backbone = Renewal(previous, learned=config.learned_weight)
    return build_latent_choice_lm(backbone, embedding, vocabulary)
