"""Window remix: the last n words jointly weigh K latent states, each a distribution over tokens.

    p(s_i | s_<i) = Σ_z P(s_i | z) P(z | s_{i-n} … s_{i-1})
    P(z | …) = softmax_z(c_z · Σ_{j=1..n} W_j e(s_{i-j}) + b_z),  P(s | z) = softmax_s(e(s) · v_z)

Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission, MixtureStates
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken
from lmlab.zoo._remix import REMIX_RECIPES, WINDOW_REMIX_SIZES, WindowRemixConfig, small_embedding

CARD = Card(
    family="latent",
    kind="exact",
    paper="003 (CATSMILE-9020), DLM20",
    source="003 DLM20",
    aliases=("DLM20",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = WindowRemixConfig
SIZES = WINDOW_REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: WindowRemixConfig, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    states = MixtureStates(config.states, config.width, vocabulary, tied=embedding)
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=LinearWindow(embedding, config.size, config.dropout),
        emission=MixtureEmission(config.width, states),
        objective=NextToken(),
    )
