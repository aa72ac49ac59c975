"""Remix with a rotation component: K fixed states, or a linear map of the previous word's vector.

    p(s | s_{i-1}) = Σ_{z<K} P(z | s_{i-1}) softmax_s(e(s) · v_z)
                     + P(K | s_{i-1}) softmax_s(e(s) · R e(s_{i-1}))

A fixed state keeps little of the previous word, the mapped vector all of it. R is an unconstrained
matrix. Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import PreviousToken
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureStates, RotatedMixture
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken
from lmlab.zoo._remix import REMIX_RECIPES, REMIX_SIZES, RemixConfig, small_embedding

CARD = Card(
    family="latent",
    kind="exact",
    paper="003 (CATSMILE-9020), DLM18",
    source="003 DLM18",
    aliases=("DLM18",),
    protocols=("LogProb", "Step"),
    oracle="brute force over the K + 1 components: tests/parity/test_remix.py",
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
        emission=RotatedMixture(config.width, states),
        objective=NextToken(),
    )
