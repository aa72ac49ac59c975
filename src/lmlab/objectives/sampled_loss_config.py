"""What a softmax is trained for: maximum likelihood, or a few sampled tokens in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.sampled_loss import Contrast
from lmlab.core.system import Assembly, System
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.nce import NoiseContrastive
from lmlab.objectives.noise_distribution import NoiseLaw
from lmlab.objectives.sampled_softmax import (
    ImportanceSampled,
    SampledSoftmax,
)

POWERS = {"unigram": 1.0, "unigram-0.75": 0.75, "uniform": 0.0}
"""Laws of noise, by the power of a token's frequency."""


SAMPLED = ("nce", "importance", "sampled-softmax")


@dataclass(frozen=True, kw_only=True)
class ContrastConfig:
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
class SampledConfig(ContrastConfig):
    """Of a softmax that predicts the next token."""

    objective: Literal["next-token", "nce", "importance", "sampled-softmax"] = "next-token"
    """next-token (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class MaskedSampledConfig(ContrastConfig):
    """Of a softmax that predicts hidden tokens."""

    objective: Literal["masked", "nce", "importance", "sampled-softmax"] = "masked"
    """masked (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


@dataclass(frozen=True, kw_only=True)
class BothWaysSampledConfig(ContrastConfig):
    """Of a softmax that predicts the next token in both directions."""

    objective: Literal["both-ways", "nce", "importance", "sampled-softmax"] = "both-ways"
    """both-ways (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""


def train_as_told(config: ContrastConfig, system: System) -> None:
    """Let a system with a softmax be trained as the config says."""
    contrast = make_contrast(config, system.vocabulary)
    if contrast is not None:
        assert isinstance(system, Assembly)
        system.train_by(contrast)


def make_contrast(config: ContrastConfig, vocabulary: Vocabulary) -> Contrast | None:
    """None for the objective's own loss, maximum likelihood."""
    if config.objective not in SAMPLED:
        return None
    noise = NoiseLaw(vocabulary, power=POWERS[config.noise])
    samples, shared = config.noise_samples, config.noise_shared
    if config.objective == "nce":
        learned = config.log_z == "learned"
        return NoiseContrastive(noise, samples=samples, shared=shared, learned_z=learned)
    kind = ImportanceSampled if config.objective == "importance" else SampledSoftmax
    return kind(noise, samples=samples, shared=shared)
