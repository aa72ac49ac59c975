"""Mixture of K cosine softmaxes (a learned scale each), weighted by the last n normalised words.

    P(s | z) = softmax_s(β_z cos(e(s), v_z));  P(z | last words) as in window-remix, with
    x = √W e(s)/|e(s)| as the input

Vector lengths cannot change scores.
"""

from __future__ import annotations

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import CosineMixtureStates, MixtureEmission
from lmlab.layers.input_embedding import SphereEmbedding
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import REMIX_RECIPES, WINDOW_REMIX_SIZES, WindowRemixConfig

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Wang et al. 2017, NormFace (scaled cosine softmax)",
    source="003 DLM22",
    aliases=("DLM22",),
    protocols=("LogProb", "Step"),
    oracle="norms, cosines and brute force over states: tests/parity/test_remix.py",
)
Config = WindowRemixConfig
SIZES = WINDOW_REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = SphereEmbedding(vocabulary.size, config.width)
    states = CosineMixtureStates(config.states, config.width, vocabulary, tied=embedding)
    backbone = LinearWindow(embedding, config.size, config.dropout)
    return assemble_lm(vocabulary, backbone, MixtureEmission(config.width, states))
