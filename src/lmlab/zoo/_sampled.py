"""What a softmax is trained for: maximum likelihood, or a few sampled tokens in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.parts import Objective
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.importance import ImportanceSampled, SampledSoftmax
from lmlab.objectives.nce import NoiseContrastive
from lmlab.objectives.noise_law import NoiseLaw

POWERS = {"unigram": 1.0, "unigram-0.75": 0.75, "uniform": 0.0}
"""Laws of noise, by the power of a token's frequency."""


@dataclass(frozen=True, kw_only=True)
class SampledConfig:
    """Settings of what a softmax is trained for."""

    objective: Literal["next-token", "nce", "importance", "sampled-softmax"] = "next-token"
    """next-token (maximum likelihood), or by tokens of noise: nce, importance, sampled-softmax."""
    noise: Literal["unigram", "unigram-0.75", "uniform"] = "unigram"
    """The law of noise: unigram, unigram-0.75 or uniform."""
    noise_samples: int = field(default=25, metadata={"at_least": 1})
    """k, tokens of noise for each target."""
    noise_shared: bool = False
    """Whether all places of a batch share their noise; cheap, so take hundreds of samples."""
    log_z: Literal["fixed", "learned"] = "fixed"
    """The log-normaliser of nce: fixed at 0, or one learned number."""


def make_objective(config: SampledConfig, asks: Objective, vocabulary: Vocabulary) -> Objective:
    """What `asks` asks, trained as the config says."""
    if config.objective == "next-token":
        return asks
    noise = NoiseLaw(vocabulary, power=POWERS[config.noise])
    samples, shared = config.noise_samples, config.noise_shared
    if config.objective == "nce":
        learned = config.log_z == "learned"
        return NoiseContrastive(asks, noise, samples=samples, shared=shared, learned_z=learned)
    kind = ImportanceSampled if config.objective == "importance" else SampledSoftmax
    return kind(asks, noise, samples=samples, shared=shared)
