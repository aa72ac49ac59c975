"""minGRU language model: a gated recurrence whose gate does not see the state.

z = σ(W_z x);  h' = (1 − z)∘h + z∘(W x);  p(next) = softmax(E h' + b)

So all positions are trained at once, by a parallel scan. What it keeps is a weighted mean of
earlier inputs; `candidate=positive` is the paper's variant for a scan in log-space, g(W x) > 0.
`lmlab train hybrid --set mixers=min-gru` puts it into blocks with feed-forward layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.min_gru import CandidateName, MinGRUCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo._recurrent import (
    RECURRENT_RECIPES,
    RecurrentConfig,
    build_rnn_lm,
    make_recurrent_sizes,
)

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Feng et al. 2024, Were RNNs All We Needed?",
    source="",
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="the recurrence by hand, and PyPI's minGRU-pytorch with the same weights: "
    "tests/parity/test_min_gru.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RecurrentConfig):
    """Settings of a minGRU language model."""

    candidate: CandidateName = "linear"
    """linear, W x; or positive, g(W x) as in the paper's log-space variant."""


SIZES = make_recurrent_sizes(Config)
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return build_rnn_lm(config, vocabulary, partial(MinGRUCell, candidate=config.candidate))
