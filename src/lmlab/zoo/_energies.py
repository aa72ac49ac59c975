"""What the energy models share: their settings and how they are put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.backbones.pretrained_init import copy_encoder_weights
from lmlab.backbones.transformer import Transformer
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.membership import TextSet
from lmlab.emissions.emission_interfaces import EnergyEmission
from lmlab.emissions.energies import InnerProductEnergy, LinearEnergy, SquaredEnergy
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.objectives.corruption_nce import (
    BuildMembership,
    ngram_membership,
)
from lmlab.objectives.energy_pooling import (
    AllPositionsPooling,
    BlanksPooling,
    IsolatedTemplatePooling,
)
from lmlab.objectives.objective_interfaces import EnergyPooling
from lmlab.objectives.token_corruption import (
    MaskedLMCorruption,
    TokenCorruption,
    UniformCorruption,
    UnigramCorruption,
)
from lmlab.zoo._transformer import TransformerConfig, make_transformer

EnergyName = Literal["inner-product", "linear", "squared"]
CorruptionName = Literal["uniform", "unigram", "proposals"]
MembershipName = Literal["texts", "grams", "none"]
PoolingName = Literal["all", "blanks", "stopped"]
OptionalSystem = System | None
"""Another system, trained before, where one is given."""


@dataclass(frozen=True, kw_only=True)
class EnergyConfig(TransformerConfig):
    """Settings of an energy that an encoder gives a text."""

    energy: EnergyName = "inner-product"
    """Energy of a place: minus the inner product of its hidden state with the embedding of the
    token fed there (inner-product), a linear map of the state (linear), or its squared distance to
    the origin (squared)."""
    negatives: int = field(default=1, metadata={"at_least": 1})
    """How many texts are made up for each of the data."""


def make_encoder(config: EnergyConfig, tokens: nn.Embedding, encoder: System | None) -> Transformer:
    """What reads a whole text, with its first weights, or with those of a trained system."""
    backbone = make_transformer(config, tokens)
    if encoder is not None:
        copy_encoder_weights(backbone, encoder)
    return backbone


def make_energy_emission(config: EnergyConfig, tokens: nn.Embedding) -> EnergyEmission:
    """What the energy of a place is, with its first weights."""
    match config.energy:
        case "inner-product":
            emission: EnergyEmission = InnerProductEnergy(config.width, tokens)
            init_transformer_weights(emission, config.width)
        case "linear":
            emission = LinearEnergy(config.width)  # which starts at zero
        case "squared":
            emission = SquaredEnergy(config.width)
            init_transformer_weights(emission, config.width)
    return emission


def make_corruption(
    name: CorruptionName, vocabulary: Vocabulary, base: System | None
) -> TokenCorruption:
    """The law of corruptions; the base is a masked model whose proposals they are."""
    if name == "proposals":
        if base is None:
            raise UserError(
                "corruption=proposals takes those of a masked model; give a run of one by --base, "
                "or corruption=unigram."
            )
        return MaskedLMCorruption(base)
    if base is not None:
        raise UserError(
            f"corruption={name} has no use for --base; leave it out, or give corruption=proposals."
        )
    return UnigramCorruption(vocabulary) if name == "unigram" else UniformCorruption(vocabulary)


POOLINGS: dict[str, type[EnergyPooling]] = {
    "all": AllPositionsPooling,
    "blanks": BlanksPooling,
    "stopped": IsolatedTemplatePooling,
}


def make_membership(name: MembershipName, size: int) -> BuildMembership | None:
    """By what corruptions are known as texts of the data."""
    return {"texts": TextSet, "grams": ngram_membership(size), "none": None}[name]
