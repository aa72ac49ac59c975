"""ELMo: forward and backward LSTM language models whose layers are contextual word features.

    loss = -Σ_t log p→(s_t | s_<t) - Σ_t log p←(s_t | s_>t)
    vector_t = [x_t; γ Σ_j softmax(w)_j [h→_tj; h←_tj]]

Both share embeddings and softmax; log_prob is the forward model's. A task learns w and γ on frozen
layers: `lmlab finetune RUN --task … --frozen`. `mix=last` concatenates the last layers only. The
paper has character-based words, and LSTMs with projections and a residual connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.elmo import ELMo, LastLayer, ScalarMix
from lmlab.objectives.bidirectional_lm import BidirectionalLM
from lmlab.objectives.sampled_losses import BidirectionalLossConfig
from lmlab.zoo._next_token import uniform_embedding
from lmlab.zoo._recurrent import RECURRENT_RECIPES, build_cell

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Peters et al. 2018, Deep Contextualized Word Representations",
    source="002 §3.4.3.3",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("both-ways", "nce", "importance", "sampled-softmax"),
    corpus="wordnet",
    oracle="our lstm forwards, and on reversed text backwards: tests/parity/test_elmo.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(BidirectionalLossConfig):
    """Settings of ELMo."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Size of word vectors and of hidden states per direction."""
    layers: int = field(default=2, metadata={"at_least": 1})
    """Layers per direction."""
    cell: Literal["lstm", "gru", "rnn"] = "lstm"
    """lstm, gru or rnn."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and layer outputs."""
    tied: bool = False
    """Weight tying: output vectors are the input embeddings."""
    mix: Literal["layers", "last"] = "layers"
    """Features after the word vector: a learned scalar mix of all layers, or the last layer."""


SIZES = {
    "tiny": Config(width=16, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> ELMo:
    words = uniform_embedding(vocabulary.size, config.width)

    def direction() -> Recurrent:
        cells = [build_cell(config.cell, config.width, config.width) for _ in range(config.layers)]
        return Recurrent(words, cells, config.dropout)

    return ELMo(
        vocabulary=vocabulary,
        backbone=direction(),
        emission=Softmax(config.width, vocabulary, tied=words if config.tied else None),
        objective=BidirectionalLM(direction(), vocabulary),
        mix=ScalarMix(config.layers + 1) if config.mix == "layers" else LastLayer(),
    )
