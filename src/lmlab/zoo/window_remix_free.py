"""Window remix with untied output embeddings.

P(s | z) = softmax_s(o(s) · v_z), o free;  P(z | last words) as in window-remix
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
    paper="003 (CATSMILE-9020), DLM21",
    source="003 DLM21",
    aliases=("DLM21",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = WindowRemixConfig
SIZES = WINDOW_REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: WindowRemixConfig, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=LinearWindow(embedding, config.size, config.dropout),
        emission=MixtureEmission(
            config.width, MixtureStates(config.states, config.width, vocabulary)
        ),
        objective=NextToken(),
    )
