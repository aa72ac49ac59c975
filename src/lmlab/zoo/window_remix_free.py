"""Mixture of K word distributions weighted by the last n words, with untied output embeddings.

P(s | z) = softmax_s(o(s) · v_z), o free;  P(z | last words) as in window-remix
"""

from __future__ import annotations

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission, MixtureStates
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm, small_embedding
from lmlab.zoo._remix import REMIX_RECIPES, WINDOW_REMIX_SIZES, WindowRemixConfig

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (aggregate Markov), Mnih and Hinton 2007 (log-bilinear)",
    source="003 DLM21",
    aliases=("DLM21",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = WindowRemixConfig
SIZES = WINDOW_REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    backbone = LinearWindow(embedding, config.size, config.dropout)
    states = MixtureStates(config.states, config.width, vocabulary)
    return assemble_lm(vocabulary, backbone, MixtureEmission(config.width, states))
