"""Bigram with latent states: p(z | previous word), CRF-like transition by that word, emission.

    p(s_{i+1} | s_i) = Σ_{z'} P(s_{i+1} | z') Σ_z P(z' | z)_{s_i} P(z | s_i)
    P(z' | z)_s = softmax_z'(a_z · b_z' + c_z' · e(s)),  P(z | s) ∝ P(z) P(s | z)

The matrix has the potentials of a linear-chain CRF (transition and observation), which makes a step
two matrix products. With a = 0 it is remix, with c = 0 it is local-hmm. Embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.local_states import LocalStates, TokenPosterior
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
    source="003 DLM16",
    aliases=("DLM16",),
    protocols=("LogProb", "Step"),
    oracle="brute force over pairs of states: tests/parity/test_remix.py",
)
Config = RemixConfig
SIZES = REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding, states = make_tied_states(config, vocabulary)
    transition = TokenStateTransition(config.states, embedding, config.dropout)
    backbone = LocalStates(TokenPosterior(states), transition)
    return assemble_lm(vocabulary, backbone, WeightedStates(states))
