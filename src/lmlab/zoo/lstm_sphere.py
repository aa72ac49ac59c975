"""LSTM language model with normalised embeddings and a cosine softmax: only directions matter.

    x = √W e(s)/|e(s)|;  h by the LSTM;  p(k) = softmax_k(β cos(e_k, h)), β learned

Results are in docs/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import CosineSoftmax
from lmlab.layers.recurrent_cells import LSTMCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _recurrent as parts
from lmlab.zoo._emissions import EmissionName

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="cf. Wang et al. 2017, NormFace (scaled cosine softmax)",
    source="003 DLM23",
    aliases=("DLM23",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="lengths and cosines by arithmetic: tests/parity/test_recurrent.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentConfig):
    """Settings of the LSTM with a cosine softmax."""

    emission: EmissionName = "sphere"
    """Emission (output layer); with a sphere emission, input embeddings are normalised too."""
    scale: float | None = field(default=None, metadata={"above": 0})
    """Initial β; None for √width."""


SIZES = parts.make_recurrent_sizes(Config)
RECIPES = parts.RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    def sphere(tied: nn.Embedding | None) -> CosineSoftmax:
        scale, dropout = config.scale, config.dropout
        return CosineSoftmax(config.width, vocabulary, tied=tied, scale=scale, dropout=dropout)

    emission = sphere if config.emission == "sphere" else None
    return parts.build_rnn_lm(config, vocabulary, LSTMCell, emission=emission)
