"""GRU language model: update and reset gates, no separate memory cell.

    r, z = σ(W [h, x] + b);  n = tanh(W_n x + b_n + r∘(U_n h + c_n));  h' = (1 - z)∘n + z∘h

The reset gate acts after the product with U_n, as in cuDNN and torch; z weighs the old state.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import GRUCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import RECURRENT_RECIPES, RECURRENT_SIZES, RecurrentConfig, build_rnn_lm

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder",
    source="002 §3.3.3.3, 003 DLM43",
    aliases=("DLM43",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="torch.nn.GRU with the same weights: tests/parity/test_recurrent.py",
)

Config = RecurrentConfig
SIZES = RECURRENT_SIZES
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, GRUCell)
