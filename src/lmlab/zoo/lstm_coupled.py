"""LSTM language model with coupled gates: the forget gate is one minus the input gate.

i, o = σ(W [h, x] + b);  g = tanh(W_g [h, x] + b_g);  c' = (1 - i)∘c + i∘g;  h' = o∘tanh(c')
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import CoupledLSTMCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import RECURRENT_RECIPES, RECURRENT_SIZES, RecurrentConfig, build_rnn_lm

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Greff et al. 2017, LSTM: A Search Space Odyssey (CIFG)",
    source="002 §3.3.3.2",
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="a step worked by hand: tests/parity/test_recurrent.py",
)

Config = RecurrentConfig
SIZES = RECURRENT_SIZES
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, CoupledLSTMCell)
