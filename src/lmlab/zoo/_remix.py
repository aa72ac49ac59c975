"""Bigrams as mixtures of K latent states (aggregate Markov, remix): shared settings, recipes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import MixtureStates
from lmlab.zoo._next_token import SHORT_SENTENCES, small_embedding


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
STATES_RECIPES = {"multi30k": SHORT_SENTENCES}
REMIX_RECIPES = {"multi30k": {"dropout": 0.3, **SHORT_SENTENCES}}


def make_tied_states(
    config: StateMixtureConfig, vocabulary: Vocabulary
) -> tuple[nn.Embedding, MixtureStates]:
    """Input embedding, and K states with the same vectors as output embedding."""
    embedding = small_embedding(vocabulary.size, config.width)
    return embedding, MixtureStates(config.states, config.width, vocabulary, tied=embedding)
