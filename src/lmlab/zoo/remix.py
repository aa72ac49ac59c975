"""Remix: a low-rank bigram; the previous word weighs K latent states, each a distribution.

    p(s_i | s_{i-1}) = Σ_z P(s_i | z) P(z | s_{i-1})
    P(s | z) = softmax_s(e(s) · v_z),  P(z | s) = softmax_z(c_z · e(s) + b_z)

An aggregate Markov model with K classes. Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import PreviousToken
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission, MixtureStates
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken
from lmlab.zoo._remix import REMIX_RECIPES, REMIX_SIZES, RemixConfig, small_embedding

CARD = Card(
    family="latent",
    kind="exact",
    paper="003 (CATSMILE-9020), DLM10; cf. Saul and Pereira 1997 (aggregate Markov models)",
    source="003 DLM10",
    aliases=("DLM10",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = RemixConfig
SIZES = REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: RemixConfig, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    states = MixtureStates(config.states, config.width, vocabulary, tied=embedding)
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=PreviousToken(embedding, config.dropout),
        emission=MixtureEmission(config.width, states),
        objective=NextToken(),
    )
