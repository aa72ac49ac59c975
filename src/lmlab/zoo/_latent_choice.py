"""Latent-choice language models (parents, windows, slots): shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import LatentChoiceLM
from lmlab.objectives.next_token import NextToken


@dataclass(frozen=True, kw_only=True)
class LatentChoiceConfig:
    """Settings of a latent-choice model."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Embedding size."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings."""


LATENT_CHOICE_RECIPES = {
    # The recipe of `window`, so that only the model differs.
    "multi30k": {
        "dropout": 0.4,
        "learning_rate": 4e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 1200,
        "weight_decay": 0.01,
        "epochs": 20,
    }
}


def new_embedding(config: LatentChoiceConfig, vocabulary: Vocabulary) -> nn.Embedding:
    """Embedding with vectors of expected norm 1, as in `window`."""
    embedding = nn.Embedding(vocabulary.size, config.width)
    nn.init.normal_(embedding.weight, std=config.width**-0.5)
    return embedding


def build_latent_choice_lm(
    backbone: LatentChoiceBackbone,
    embedding: nn.Embedding,
    vocabulary: Vocabulary,
    emission: Emission | None = None,
) -> LatentChoiceLM:
    """Backbone and tied softmax (or another emission), trained on the next token."""
    softmax = Softmax(embedding.embedding_dim, vocabulary, tied=embedding)
    return LatentChoiceLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=softmax if emission is None else emission,
        objective=NextToken(),
    )
