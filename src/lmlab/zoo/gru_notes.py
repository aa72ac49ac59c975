"""GRU language model variant whose reset gate multiplies the input instead of the state.

    z, r = σ(W [h, x]);  h̃ = tanh(W [h, r∘x]);  h' = (1 - z)∘h + z∘h̃

The reset gate of Cho et al. 2014 multiplies h. No biases. For comparison with gru.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import InputResetGRUCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import RECURRENT_RECIPES, RECURRENT_SIZES, RecurrentConfig, build_rnn_lm

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder (varied)",
    source="002 §3.3.3.3",
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="a step worked by hand: tests/parity/test_recurrent.py",
)

Config = RecurrentConfig
SIZES = RECURRENT_SIZES
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, InputResetGRUCell)
