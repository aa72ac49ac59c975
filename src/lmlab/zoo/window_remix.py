"""Mixture of K word distributions (latent states), weighted by the last n words (log-bilinear).

    p(s_i | s_<i) = Σ_z P(s_i | z) P(z | s_{i-n} … s_{i-1})
    P(z | …) = softmax_z(c_z · Σ_{j=1..n} W_j e(s_{i-j}) + b_z),  P(s | z) = softmax_s(e(s) · v_z)

Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import REMIX_RECIPES, WINDOW_REMIX_SIZES, WindowRemixConfig, make_tied_states

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (aggregate Markov), Mnih and Hinton 2007 (log-bilinear)",
    source="003 DLM20",
    aliases=("DLM20",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = WindowRemixConfig
SIZES = WINDOW_REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding, states = make_tied_states(config, vocabulary)
    backbone = LinearWindow(embedding, config.size, config.dropout)
    return assemble_lm(vocabulary, backbone, MixtureEmission(config.width, states))
