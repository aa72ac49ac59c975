"""LSTM with a cosine mixture emission: the hidden state weighs K states, each a distribution.

    c' = f∘c + i∘g;  h' = o∘tanh(c')
    p(next) = Σ_z P(z | h) P(next | z);  P(s | z) = softmax_s(β_z cos(e_s, v_z)), K states

The initial state is learned; `starts` = W gives a mixture p(s) = Σ_w π_w p(s | start w), summed
exactly.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import LSTMCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import (
    RECURRENT_MIXTURE_RECIPES,
    RECURRENT_MIXTURE_SIZES,
    RecurrentMixtureConfig,
    build_recurrent,
)

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="003 (CATSMILE-9020), DLM26",
    source="003 DLM26",
    aliases=("DLM26",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="mixture and starts summed by hand: tests/parity/test_mixed_starts.py",
)

Config = RecurrentMixtureConfig
SIZES = RECURRENT_MIXTURE_SIZES
RECIPES = RECURRENT_MIXTURE_RECIPES


def build(config: RecurrentMixtureConfig, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_recurrent(config, vocabulary, LSTMCell)
