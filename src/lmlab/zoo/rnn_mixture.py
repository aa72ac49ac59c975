"""Elman RNN LM whose output mixes K word distributions (cosine softmax); learned initial states.

    h' = tanh(W x + U h + b)
    p(next) = Σ_z P(z | h) P(next | z);  P(s | z) = softmax_s(β_z cos(e_s, v_z)), K states

The initial state is learned; `starts` = W gives a mixture p(s) = Σ_w π_w p(s | start w), summed
exactly.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import TanhCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _recurrent as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="cf. Elman 1990 (RNN), Yang et al. 2018 (mixture of softmaxes)",
    source="003 DLM29",
    aliases=("DLM29",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="mixture and starts summed by hand: tests/parity/test_initial_state_mixture.py",
)

Config = parts.RecurrentMixtureConfig
SIZES = parts.RECURRENT_MIXTURE_SIZES
RECIPES = parts.RECURRENT_MIXTURE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return parts.build_rnn_lm(config, vocabulary, TanhCell)
