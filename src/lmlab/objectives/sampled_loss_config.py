"""Settings of the softmax's training loss: maximum likelihood or a sampled loss."""

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
"""Noise distributions, by the exponent of a token's frequency."""


SAMPLED_OBJECTIVES = ("nce", "importance", "sampled-softmax")


@dataclass(frozen=True, kw_only=True)
class SampledLossConfig:
    """Settings of the softmax's training loss, applied when the model is built."""

    objective: str = ""
    """Training loss: the model's own (maximum likelihood) or a sampled one."""
    noise: Literal["unigram", "unigram-0.75", "uniform"] = "unigram"
    """Noise distribution: unigram, unigram-0.75 or uniform."""
    noise_samples: int = field(default=25, metadata={"at_least": 1})
    """k, noise samples per target."""
    noise_shared: bool = False
    """Share noise samples across all positions of a batch; cheap, so use hundreds of samples."""
    log_z: Literal["fixed", "learned"] = "fixed"
    """Log-normaliser of nce: fixed at 0, or one learned number."""


@dataclass(frozen=True, kw_only=True)
class NextTokenLossConfig(SampledLossConfig):
    """Training loss of a softmax that predicts the next token."""

    objective: Literal["next-token", "nce", "importance", "sampled-softmax"] = "next-token"
    """next-token (maximum likelihood), or a sampled loss: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class MaskedLossConfig(SampledLossConfig):
    """Training loss of a softmax that predicts masked tokens."""

    objective: Literal["masked", "nce", "importance", "sampled-softmax"] = "masked"
    """masked (maximum likelihood), or a sampled loss: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class BidirectionalLossConfig(SampledLossConfig):
    """Training loss of a softmax that predicts the next token in both directions."""

    objective: Literal["both-ways", "nce", "importance", "sampled-softmax"] = "both-ways"
    """both-ways (maximum likelihood), or a sampled loss: nce, importance, sampled-softmax."""


def apply_sampled_loss(config: SampledLossConfig, system: System) -> None:
    """Set the training loss of a model with a softmax as configured."""
    contrast = make_sampled_loss(config, system.vocabulary)
    if contrast is not None:
        assert isinstance(system, Assembly)
        system.set_sampled_loss(contrast)


def make_sampled_loss(config: SampledLossConfig, vocabulary: Vocabulary) -> SampledLoss | None:
    """The sampled loss, or None for maximum likelihood."""
    if config.objective not in SAMPLED_OBJECTIVES:
        return None
    noise = NoiseDistribution(vocabulary, power=NOISE_POWERS[config.noise])
    samples, shared = config.noise_samples, config.noise_shared
    if config.objective == "nce":
        learned = config.log_z == "learned"
        return NoiseContrastiveEstimation(noise, samples=samples, shared=shared, learned_z=learned)
    kind = ImportanceSampledSoftmax if config.objective == "importance" else SampledSoftmax
    return kind(noise, samples=samples, shared=shared)
