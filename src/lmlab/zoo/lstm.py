"""LSTM language model: a memory cell with input, forget and output gates.

i, f, o = σ(W [h, x] + b);  g = tanh(W_g [h, x] + b_g);  c' = f∘c + i∘g;  h' = o∘tanh(c')
p(next) = softmax(E h' + b)
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import LSTMCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import RECURRENT_RECIPES, RECURRENT_SIZES, RecurrentConfig, build_rnn_lm

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Hochreiter and Schmidhuber 1997, Long Short-Term Memory; Gers et al. 2000 (forget gate)",
    source="002 §3.3, 003 DLM12",
    aliases=("DLM12",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="torch.nn.LSTM with the same weights: tests/parity/test_recurrent.py",
)

Config = RecurrentConfig
SIZES = RECURRENT_SIZES
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, LSTMCell)
