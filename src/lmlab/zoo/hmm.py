"""Hidden Markov model (forward algorithm): neural tables by gradient, or free tables by EM.

    p(s) = Σ_z P(z_1) Π_t P(z_{t+1} | z_t) P(s_t | z_t)

Summed exactly by the forward algorithm. Fitted by gradient, with neural parametrisation of the
tables, or by EM, with free tables. With C blocks a token is emitted only by the K / C states of its
block. The paper's blocks are Brown clusters; ours are frequency-sorted segments of the vocabulary
of about equal mass, as the builder sees no training text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.hmm_parameters import NeuralHMMParameters, TabularHMMParameters
from lmlab.models.hmm import HMM_RECIPES, HiddenMarkovModel, TabularHiddenMarkovModel

CARD = Card(
    family="latent",
    kind="exact",
    paper="Chiu and Rush 2020 (Scaling Hidden Markov Language Models); Rabiner 1989",
    source="003 reading list",
    protocols=("LogProb", "Step", "Fill"),
    oracle="sums over all state sequences: tests/parity/test_hmm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the hidden Markov model."""

    states: int = field(default=256, metadata={"at_least": 1, "at_most": 65536})
    """K, hidden states."""
    blocks: int = field(default=1, metadata={"at_least": 1})
    """C, blocks of states that partition the vocabulary; a divisor of the states."""
    width: int = field(default=128, metadata={"at_least": 1})
    """Size of state and word vectors."""
    dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Dropout rate of the networks' hidden units."""
    state_dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """State dropout: share of states left out of a training batch."""
    fitting: Literal["gradient", "em"] = "gradient"
    """gradient, with neural tables, or em (expectation-maximisation), with free ones."""


SIZES = {
    "tiny": Config(states=8, blocks=2, width=16),
    "small": Config(),
    "base": Config(states=1024, blocks=8, width=256, state_dropout=0.5),
}

RECIPES = HMM_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> HiddenMarkovModel:
    if config.fitting == "em":
        free = TabularHMMParameters(config.states, vocabulary, blocks=config.blocks)
        return TabularHiddenMarkovModel(free, vocabulary)
    tables = NeuralHMMParameters(
        config.states,
        config.width,
        vocabulary,
        blocks=config.blocks,
        state_dropout=config.state_dropout,
        dropout=config.dropout,
    )
    return HiddenMarkovModel(tables, vocabulary)
