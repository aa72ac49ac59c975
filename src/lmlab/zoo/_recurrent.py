"""What the recurrent systems share: their settings and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.system import LeftToRight
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.cells import Cell
from lmlab.objectives.next_token import NextToken


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Settings of a recurrent language model."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in a hidden state and in an embedding."""
    layers: int = field(default=1, metadata={"at_least": 1})
    """Cells stacked on each other."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Share of embeddings and layer outputs set to zero in training."""
    tied: bool = False
    """Whether the output vectors are the input embeddings."""


RECURRENT_SIZES = {
    "tiny": RecurrentConfig(width=16, dropout=0.0),
    "small": RecurrentConfig(),
    "base": RecurrentConfig(width=650, layers=2, dropout=0.5, tied=True),
}

RECURRENT_RECIPES = {
    # Short sentences: docs/results.md has what it reaches on multi30k-l20.
    "multi30k": {
        "tied": True,
        "dropout": 0.4,
        "learning_rate": 4e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 1200,
        "weight_decay": 0.01,
        "epochs": 20,
    },
    # As wide as the small LSTM of Zaremba et al. 2014, with one layer instead of two.
    "ptb": {
        "width": 200,
        "tied": True,
        "dropout": 0.35,
        "learning_rate": 4e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "lanes": 20,
        "span": 35,
        "weight_decay": 0.01,
        "epochs": 8,
    },
}


def build_recurrent(
    config: RecurrentConfig, vocabulary: Vocabulary, cell: Callable[[int, int], Cell]
) -> LeftToRight:
    """Embedding → stacked cells → softmax, trained to predict the next token."""
    embedding = nn.Embedding(vocabulary.size, config.width)
    # Small vectors: torch's unit normals make the first steps of a softmax model wild.
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    cells = [cell(config.width, config.width) for _ in range(config.layers)]
    return LeftToRight(
        vocabulary=vocabulary,
        backbone=Recurrent(embedding, cells, config.dropout),
        emission=Softmax(config.width, vocabulary, tied=embedding if config.tied else None),
        objective=NextToken(),
    )
