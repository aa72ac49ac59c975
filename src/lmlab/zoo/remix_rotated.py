"""Aggregate Markov bigram (K latent states) mixed with a log-bilinear bigram as one more component.

    p(s | s_{i-1}) = Σ_{z<K} P(z | s_{i-1}) softmax_s(e(s) · v_z)
                     + P(K | s_{i-1}) softmax_s(e(s) · R e(s_{i-1}))

A fixed state keeps little of the previous word, the mapped vector all of it. R is an unconstrained
matrix. Input and output embeddings are tied.
"""

from __future__ import annotations

from lmlab.backbones.window import PreviousToken
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import RotatedMixture
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._next_token import assemble_lm
from lmlab.zoo._remix import REMIX_RECIPES, REMIX_SIZES, RemixConfig, make_tied_states

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (aggregate Markov models)",
    source="003 DLM18",
    aliases=("DLM18",),
    protocols=("LogProb", "Step"),
    oracle="brute force over the K + 1 components: tests/parity/test_remix.py",
)
Config = RemixConfig
SIZES = REMIX_SIZES
RECIPES = REMIX_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding, states = make_tied_states(config, vocabulary)
    backbone = PreviousToken(embedding, config.dropout)
    return assemble_lm(vocabulary, backbone, RotatedMixture(config.width, states))
