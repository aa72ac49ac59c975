"""State-mixture models (remixes): shared settings and the recipe for short sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True, kw_only=True)
class StateMixtureConfig:
    """Settings of a model with K latent states, each a distribution over tokens."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Size of embeddings and state vectors."""
    states: int = field(default=400, metadata={"at_least": 1})
    """K, latent states."""


@dataclass(frozen=True, kw_only=True)
class RemixConfig(StateMixtureConfig):
    """Settings of a mixture of K states weighted by the previous embedding."""

    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings."""


@dataclass(frozen=True, kw_only=True)
class WindowRemixConfig(RemixConfig):
    """Settings of a remix conditioned on several tokens."""

    size: int = field(default=4, metadata={"at_least": 1})
    """Context size n, in tokens."""


REMIX_SIZES = {
    "tiny": RemixConfig(width=16, states=6, dropout=0.0),
    "small": RemixConfig(),
    "base": RemixConfig(width=512, states=1000, dropout=0.5),
}
WINDOW_REMIX_SIZES = {
    "tiny": WindowRemixConfig(width=16, states=6, dropout=0.0, size=3),
    "small": WindowRemixConfig(),
    "base": WindowRemixConfig(width=512, states=1000, dropout=0.5),
}
SHORT_SENTENCES = {
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1200,
    "weight_decay": 0.01,
    "epochs": 20,
}
STATES_RECIPES = {"multi30k": SHORT_SENTENCES}
REMIX_RECIPES = {"multi30k": {"dropout": 0.3, **SHORT_SENTENCES}}


def small_embedding(size: int, width: int) -> nn.Embedding:
    """Embedding with vectors of norm about 1; torch's unit normals make training unstable."""
    embedding = nn.Embedding(size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding
