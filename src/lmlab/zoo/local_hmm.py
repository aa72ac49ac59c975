"""Bigram with latent states: previous word's state posterior, then one fixed HMM transition.

    p(s_{i+1} | s_i) = Σ_{z'} P(s_{i+1} | z') Σ_z P(z' | z) P(z | s_i)
    P(z | s) ∝ P(z) P(s | z),  P(s | z) = softmax_s(e(s) · v_z) on both sides
    P(z' | z) = softmax_z'(a_z · b_z')

One step of an HMM restarted at every word: remix with a transition matrix.
"""

from __future__ import annotations

from lmlab.backbones.local_states import LocalStates, TokenPosterior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureStates, WeightedStates
from lmlab.layers.state_transition import StateTransition
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import STATES_RECIPES, StateMixtureConfig

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Rabiner 1989 (HMM)",
    source="003 DLM15",
    aliases=("DLM15",),
    protocols=("LogProb", "Step"),
    oracle="brute force over pairs of states: tests/parity/test_remix.py",
)
Config = StateMixtureConfig
SIZES = {
    "tiny": Config(width=16, states=6),
    "small": Config(),
    "base": Config(width=512, states=1000),
}
RECIPES = STATES_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    states = MixtureStates(config.states, config.width, vocabulary)
    backbone = LocalStates(TokenPosterior(states), StateTransition(config.states, config.width))
    return assemble_lm(vocabulary, backbone, WeightedStates(states))
