"""Product of experts of G aggregate Markov bigrams, trained on a lower bound, scored exactly.

    p(s | s_{i-1}) = Π_g f_g(s | s_{i-1}) / Σ_s' Π_g f_g(s' | s_{i-1}) ≥ Π_g f_g(s | s_{i-1})
    f_g(s | s_{i-1}) = Σ_z P_g(s | z) P_g(z | s_{i-1})

K^G joint states for the cost of G · K; states=2 gives Bernoulli states. On the bound each factor
learns alone, so all learn the same and the product is overconfident. Tied embeddings are all that
couples the factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.backbones.window import PreviousToken
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission, MixtureStates, ProductOfMixtures
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import LowerBoundObjective, NextToken
from lmlab.zoo._next_token import small_embedding
from lmlab.zoo._remix import REMIX_RECIPES, RemixConfig

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Hinton 2002 (products of experts)",
    source="003 DLM19",
    aliases=("DLM19",),
    protocols=("LogProb", "Step"),
    objectives=("lower-bound", "next-token"),
    oracle="brute force over tuples of states, bound ≤ exact: tests/parity/test_remix.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RemixConfig):
    """Settings of the product of remixes."""

    states: int = field(default=100, metadata={"at_least": 1})
    """K, states of each factor; 2 for Bernoulli states."""
    factors: int = field(default=2, metadata={"at_least": 1})
    """G, factors of the product."""
    objective: Literal["lower-bound", "next-token"] = "lower-bound"
    """lower-bound, or next-token (exact log-probability, at G · K · V per token)."""


SIZES = {
    "tiny": Config(width=16, states=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, states=400, factors=3, dropout=0.5),
}
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    tables = [
        MixtureStates(config.states, config.width, vocabulary, tied=embedding)
        for _ in range(config.factors)
    ]
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=PreviousToken(embedding, config.dropout),
        emission=ProductOfMixtures([MixtureEmission(config.width, table) for table in tables]),
        objective=LowerBoundObjective() if config.objective == "lower-bound" else NextToken(),
    )
