"""Energy-based models (ebm, residual_ebm): shared settings; encoder, energy head, corruptions."""

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
    AllPositionsPooling,
    BlanksPooling,
    BuildMembership,
    IsolatedTemplatePooling,
    MaskedLMCorruption,
    TokenCorruption,
    UniformCorruption,
    UnigramCorruption,
    ngram_membership,
)
from lmlab.objectives.objective_interfaces import EnergyPooling
from lmlab.zoo._transformer import make_transformer
from lmlab.zoo._transformer_config import TransformerConfig

EnergyName = Literal["inner-product", "linear", "squared"]
CorruptionName = Literal["uniform", "unigram", "proposals"]
MembershipName = Literal["texts", "grams", "none"]
PoolingName = Literal["all", "blanks", "stopped"]
OptionalSystem = System | None
"""An optional trained system."""


@dataclass(frozen=True, kw_only=True)
class EnergyConfig(TransformerConfig):
    """Settings of an energy function computed by a Transformer encoder."""

    energy: EnergyName = "inner-product"
    """Energy per position: negative inner product of hidden state and input embedding
    (inner-product), a linear map of the state (linear), or the squared norm of one (squared)."""
    negatives: int = field(default=1, metadata={"at_least": 1})
    """Negative texts per training text."""


def make_encoder(config: EnergyConfig, tokens: nn.Embedding, encoder: System | None) -> Transformer:
    """Transformer encoder, randomly initialised or with the weights of a trained system."""
    backbone = make_transformer(config, tokens)
    if encoder is not None:
        copy_encoder_weights(backbone, encoder)
    return backbone


def make_energy_emission(config: EnergyConfig, tokens: nn.Embedding) -> EnergyEmission:
    """Energy head, initialised."""
    match config.energy:
        case "inner-product":
            emission: EnergyEmission = InnerProductEnergy(config.width, tokens)
            init_transformer_weights(emission, config.width)
        case "linear":
            emission = LinearEnergy(config.width)  # initialised to zero
        case "squared":
            emission = SquaredEnergy(config.width)
            init_transformer_weights(emission, config.width)
    return emission


def make_corruption(
    name: CorruptionName, vocabulary: Vocabulary, base: System | None
) -> TokenCorruption:
    """Corruption distribution; `base` is the masked LM of corruption=proposals."""
    if name == "proposals":
        if base is None:
            raise UserError(
                "corruption=proposals needs a masked language model; give a run of one by "
                "--base, or use corruption=unigram."
            )
        return MaskedLMCorruption(base)
    if base is not None:
        raise UserError(
            f"--base does not apply to corruption={name}; remove it, or use corruption=proposals."
        )
    return UnigramCorruption(vocabulary) if name == "unigram" else UniformCorruption(vocabulary)


POOLINGS: dict[str, type[EnergyPooling]] = {
    "all": AllPositionsPooling,
    "blanks": BlanksPooling,
    "stopped": IsolatedTemplatePooling,
}


def make_membership(name: MembershipName, size: int) -> BuildMembership | None:
    """Membership test that detects corruptions which are training texts."""
    return {"texts": TextSet, "grams": ngram_membership(size), "none": None}[name]
