"""Aggregate Markov bigram: the previous word weighs K latent states, each a word distribution.

    p(s_i | s_{i-1}) = Σ_z P(s_i | z) P(z | s_{i-1})
    P(s | z) = softmax_s(e(s) · v_z),  P(z | s) = softmax_z(c_z · e(s) + b_z)

A bigram table of rank at most K. Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import PreviousToken
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureEmission
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import REMIX_RECIPES, REMIX_SIZES, RemixConfig, make_tied_states

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (aggregate Markov models)",
    source="003 DLM10",
    aliases=("DLM10",),
    protocols=("LogProb", "Step"),
    oracle="brute force over states: tests/parity/test_remix.py",
)
Config = RemixConfig
SIZES = REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding, states = make_tied_states(config, vocabulary)
    backbone = PreviousToken(embedding, config.dropout)
    return assemble_lm(vocabulary, backbone, MixtureEmission(config.width, states))
