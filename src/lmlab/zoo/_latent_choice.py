"""Next-word models with a latent source word, window or attention: shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone
from lmlab.backbones.latent_parents import LatentParents, ParentPrior, TypedTransitions
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import LatentChoiceLM
from lmlab.objectives.next_token import NextToken
from lmlab.zoo._next_token import SHORT_SENTENCES, small_embedding


@dataclass(frozen=True, kw_only=True)
class LatentChoiceConfig:
    """Settings of a latent-choice model."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Embedding size."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings."""


@dataclass(frozen=True, kw_only=True)
class LearnedPriorConfig(LatentChoiceConfig):
    """Settings of a latent-parent model with a learned prior."""

    length: int = field(default=32, metadata={"at_least": 2})
    """Positions with their own prior; later ones share the last, over `length` words."""


# The recipe of `window`, so that only the model differs.
LATENT_CHOICE_RECIPES = {"multi30k": {"dropout": 0.4, **SHORT_SENTENCES}}


def new_embedding(config: LatentChoiceConfig, vocabulary: Vocabulary) -> nn.Embedding:
    """Embedding with vectors of expected norm 1, as in `window`."""
    return small_embedding(vocabulary.size, config.width)


def make_latent_parents(
    config: LatentChoiceConfig, embedding: nn.Embedding, prior: ParentPrior, *, types: int = 1
) -> LatentParents:
    """Latent-parent backbone with one transition matrix for each of the types."""
    transitions = TypedTransitions(config.width, types)
    return LatentParents(embedding, prior, transitions, dropout=config.dropout)


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
