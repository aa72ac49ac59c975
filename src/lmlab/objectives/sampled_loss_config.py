"""What a softmax is trained for: maximum likelihood, or a few sampled tokens in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.system import Assembly, System
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.nce import NoiseContrastiveEstimation
from lmlab.objectives.noise_distribution import NoiseDistribution
from lmlab.objectives.sampled_softmax import (
    ImportanceSampledSoftmax,
    SampledSoftmax,
)

NOISE_POWERS = {"unigram": 1.0, "unigram-0.75": 0.75, "uniform": 0.0}
"""Laws of noise, by the power of a token's frequency."""


SAMPLED_OBJECTIVES = ("nce", "importance", "sampled-softmax")


@dataclass(frozen=True, kw_only=True)
class SampledLossConfig:
    """Settings of what a softmax is trained for, on which whoever builds the system acts."""

    objective: str = ""
    """The system's own, by maximum likelihood, or a sampled one; each says which."""
    noise: Literal["unigram", "unigram-0.75", "uniform"] = "unigram"
    """The law of noise: unigram, unigram-0.75 or uniform."""
    noise_samples: int = field(default=25, metadata={"at_least": 1})
    """k, tokens of noise for each target."""
    noise_shared: bool = False
    """Whether all places of a batch share their noise; cheap, so take hundreds of samples."""
    log_z: Literal["fixed", "learned"] = "fixed"
    """The log-normaliser of nce: fixed at 0, or one learned number."""


@dataclass(frozen=True, kw_only=True)
class NextTokenLossConfig(SampledLossConfig):
    """Of a softmax that predicts the next token."""

    objective: Literal["next-token", "nce", "importance", "sampled-softmax"] = "next-token"
    """next-token (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class MaskedLossConfig(SampledLossConfig):
    """Of a softmax that predicts hidden tokens."""

    objective: Literal["masked", "nce", "importance", "sampled-softmax"] = "masked"
    """masked (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class BidirectionalLossConfig(SampledLossConfig):
    """Of a softmax that predicts the next token in both directions."""

    objective: Literal["both-ways", "nce", "importance", "sampled-softmax"] = "both-ways"
    """both-ways (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


def apply_sampled_loss(config: SampledLossConfig, system: System) -> None:
    """Let a system with a softmax be trained as the config says."""
    contrast = make_sampled_loss(config, system.vocabulary)
    if contrast is not None:
        assert isinstance(system, Assembly)
        system.set_sampled_loss(contrast)


def make_sampled_loss(config: SampledLossConfig, vocabulary: Vocabulary) -> SampledLoss | None:
    """None for the objective's own loss, maximum likelihood."""
    if config.objective not in SAMPLED_OBJECTIVES:
        return None
    noise = NoiseDistribution(vocabulary, power=NOISE_POWERS[config.noise])
    samples, shared = config.noise_samples, config.noise_shared
    if config.objective == "nce":
        learned = config.log_z == "learned"
        return NoiseContrastiveEstimation(noise, samples=samples, shared=shared, learned_z=learned)
    kind = ImportanceSampledSoftmax if config.objective == "importance" else SampledSoftmax
    return kind(noise, samples=samples, shared=shared)
