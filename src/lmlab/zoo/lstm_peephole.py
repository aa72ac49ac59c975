"""Peephole LSTM language model: the gates also see the memory cell, by full matrices.

    i, f, o = σ(W [h, x, c] + b);  g = tanh(W_g [h, x] + b_g);  c' = f∘c + i∘g;  h' = o∘tanh(c')

Gers and Schmidhuber's peepholes are diagonal.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import PeepholeLSTMCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import RECURRENT_RECIPES, RECURRENT_SIZES, RecurrentConfig, build_rnn_lm

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Gers and Schmidhuber 2000, Recurrent Nets that Time and Count",
    source="002 §3.3.3.1",
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="a step worked by hand: tests/parity/test_recurrent.py",
)

Config = RecurrentConfig
SIZES = RECURRENT_SIZES
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, PeepholeLSTMCell)
