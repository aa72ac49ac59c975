"""What the latent parents, windows and slots share: settings, recipe, how they are assembled."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.latent_choice import (
    LatentChoiceBackbone,
)
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.latent_choice import LatentChoiceLM
from lmlab.objectives.next_token import NextToken


@dataclass(frozen=True, kw_only=True)
class LatentChoiceConfig:
    """Settings of a model with latent parents."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in an embedding."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Share of embedding entries set to zero in training."""


LATENT_CHOICE_RECIPES = {
    # That of `window`, so that what differs is the model.
    "multi30k": {
        "dropout": 0.4,
        "learning_rate": 4e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 1200,
        "weight_decay": 0.01,
        "epochs": 20,
    },
}


def new_embedding(config: LatentChoiceConfig, vocabulary: Vocabulary) -> nn.Embedding:
    """Vectors of length 1 on average, as `window` has them."""
    embedding = nn.Embedding(vocabulary.size, config.width)
    nn.init.normal_(embedding.weight, std=config.width**-0.5)
    return embedding


def build_latent_choice_lm(
    backbone: LatentChoiceBackbone,
    embedding: nn.Embedding,
    vocabulary: Vocabulary,
    emission: Emission | None = None,
) -> LatentChoiceLM:
    """backbone → softmax tied to the embedding, or another emission, predicting the next token."""
    softmax = Softmax(embedding.embedding_dim, vocabulary, tied=embedding)
    return LatentChoiceLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=softmax if emission is None else emission,
        objective=NextToken(),
    )
