"""Trigram with latent states: word posterior × local-crf's prediction; transition, emission.

    P(z_{i+2}) = Σ_z P(z_{i+2} | z)_{s_{i+1}} norm_z[P(z | s_{i+1}) P(z | s_i)]
    P(z | s_{i+1}) ∝ P(z) P(s_{i+1} | z);  P(z | s_i) as local-crf predicts it after s_i

The product contains the prior P(z) twice, where Bayes' rule has it once. After the start token,
with nothing before it, it equals local-crf.
"""

from __future__ import annotations

from lmlab.backbones.local_states import TokenPosterior, TwoTokenStates
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import WeightedStates
from lmlab.layers.state_transition import TokenStateTransition
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import REMIX_RECIPES, REMIX_SIZES, RemixConfig, make_tied_states

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. McCallum et al. 2000 (MEMM), Lafferty et al. 2001 (CRF)",
    source="003 DLM17",
    aliases=("DLM17",),
    protocols=("LogProb", "Step"),
    oracle="brute force over triples of states: tests/parity/test_remix.py",
)
Config = RemixConfig
SIZES = REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding, states = make_tied_states(config, vocabulary)
    transition = TokenStateTransition(config.states, embedding, config.dropout)
    backbone = TwoTokenStates(TokenPosterior(states), transition)
    return assemble_lm(vocabulary, backbone, WeightedStates(states))
