"""Renewal model: a bigram interpolated with a unigram, weight ½ each.

    p(s_i | s_{i-1}) = λ Q(s_i) + (1 - λ) W(s_i | s_{i-1}),  λ = 1/2
    Q = softmax_k(e(k) · q + b_k),  W = softmax_k(e(k) · W e(s_{i-1}) + b_k)

At the end of a phrase the next word does not depend on the last: Q covers what W need not explain.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    paper="003 (CATSMILE-9020), DLM7; cf. Jelinek and Mercer 1980 (linear interpolation)",
    source="003 DLM7",
    aliases=("DLM7",),
    protocols=("LogProb", "Step"),
    oracle="a sentence worked by hand: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(LatentChoiceConfig):
    """Settings of the renewal model."""

    learned_weight: bool = False
    """Whether λ is learned, initialised to 1/2; else fixed."""


SIZES = {
    "tiny": Config(width=16, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = new_embedding(config, vocabulary)
    previous = LatentParents(
        embedding, UniformPrior(reach=1), TypedTransitions(config.width), dropout=config.dropout
    )
    backbone = Renewal(previous, learned=config.learned_weight)
    return build_latent_choice_lm(backbone, embedding, vocabulary)
