"""Sampled softmax losses (NCE, importance sampling, sampled softmax), noise unigram, settings.

Gutmann and Hyvärinen 2010; Bengio and Senécal 2003; Jean et al. 2015.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.assembly import Assembly
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import (
    Backbone,
    CandidateLogits,
    HiddenStates,
    Network,
    OutputLayer,
    Predictions,
    prediction_mask,
)
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.system import System
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.unigram_distribution import count_tokens

WEIGHT_RESOLUTION = 1 << 20
"""Weights are integer multiples of 1 / this: powers of counts keep six digits."""

RANDOM_RANGE = 1 << 62
"""Range of uniform integers, reduced modulo the total weight: a relative bias of total / 2^64."""


class NoiseDistribution(nn.Module):
    """Noise q(w) ∝ n(w)^power, n(w) the count of w among the training targets, at least 1.

    Power 1 is the unigram distribution, 0 the uniform one, 0.75 word2vec's (Mikolov et al. 2013).
    Unseen tokens count once: a token never sampled as noise would keep its initial score. Before
    the data is counted q is uniform. Weights are integers, stored as cumulative sums: sampling
    costs O(log V), a probability two look-ups, and no step iterates over the vocabulary.
    """

    cumulative: Tensor

    def __init__(self, vocabulary: Vocabulary, *, power: float) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.power = power
        self.register_buffer("cumulative", torch.zeros(vocabulary.size, dtype=torch.long))
        self.count(np.zeros(0, dtype=np.int64))

    def count(self, tokens: NDArray[np.generic]) -> None:
        """Estimate the distribution from the token ids of a text."""
        counts = count_tokens(tokens, self.vocabulary.size)
        weights = np.rint(
            np.maximum(counts, 1).astype(np.float64) ** self.power * WEIGHT_RESOLUTION
        )
        weights[list(self.vocabulary.unpredictable)] = 0
        self.cumulative.copy_(torch.from_numpy(weights.astype(np.int64).cumsum()))

    def sample(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> Tensor:
        """Sample token ids of a shape, on the generator's device."""
        device = self.cumulative.device
        generator_device = device if generator is None else generator.device
        total = int(self.cumulative[-1])
        # torch.randint takes 32 bits modulo the range where that is below 2^28, which favours small
        # numbers by up to a sixteenth. A multiple of the total near 2^62 makes it take 64 bits.
        multiple = total * (RANDOM_RANGE // total)
        numbers = (
            torch.randint(multiple, shape, generator=generator, device=generator_device).to(device)
            % total
        )
        return torch.searchsorted(self.cumulative, numbers, right=True)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """log q of each token, in the shape of `tokens`; -inf for tokens never predicted."""
        upper = self.cumulative[tokens]
        lower = torch.where(tokens > 0, self.cumulative[(tokens - 1).clamp(min=0)], 0)
        share = (upper - lower).to(torch.get_default_dtype()) / self.cumulative[-1]
        return share.log()

    def log_probs(self) -> Tensor:
        """(V,) log q of the whole vocabulary."""
        return self.log_prob(torch.arange(len(self.cumulative), device=self.cumulative.device))


class NoiseSampledLoss(SampledLoss):
    """A softmax trained on the scores of the target and of k noise tokens, (N, 1 + k) of them.

    Noise is sampled per position, or once per batch if `shared`: a matrix product instead of N · k
    vector look-ups, so k can be far larger. The model's log_prob remains the full softmax, exact
    whatever the normaliser is after training. Output biases are initialised to the log-frequencies
    of the training split, so that the normaliser starts near 1.
    """

    def __init__(self, noise: NoiseDistribution, *, samples: int, shared: bool) -> None:
        super().__init__()
        self.noise = noise
        self.samples = samples
        self.shared = shared

    @abstractmethod
    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        """(N,) losses, from s and log q of the target and of the noise, both (N, 1 + k)."""

    def check_parts(self, backbone: Backbone, emission: OutputLayer) -> None:
        if isinstance(emission, CandidateLogits) and backbone.output_kind == "vectors":
            return
        raise UserError(
            f"{type(self).__name__} needs scores of single tokens from a softmax over one vector "
            f"per position, got {type(emission).__name__} on {backbone.output_kind}; use --set "
            "emission=softmax where the system has that setting, or remove --objective."
        )

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.noise.count(tokens)
        unigram = NoiseDistribution(self.noise.vocabulary, power=1.0)
        unigram.count(tokens)
        network.initialise_logits(unigram.log_probs())

    def predictions(
        self,
        network: Network,
        view: View,
        hidden: HiddenStates,
        *,
        generator: torch.Generator | None = None,
    ) -> Predictions:
        target_mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        targets = view.prediction_view.targets[target_mask][:, None]
        shape = (self.samples,) if self.shared else (len(targets), self.samples)
        noise = self.noise.sample(shape, generator=generator)
        own, common = (targets, noise) if self.shared else (torch.cat([targets, noise], 1), None)
        scores = network.scores(hidden, target_mask, own, common)
        candidates = torch.cat([targets, noise.expand(len(targets), -1)], 1)
        losses = self.target_losses(scores, self.noise.log_prob(candidates).to(scores.dtype))
        return Predictions(log_probs=-losses, target_mask=target_mask)

    def capture_internals(self, network: Network, view: View) -> dict[str, Capture]:
        return {
            "log normaliser": Capture(
                values=log_normalisers(network, view).to_dense(),
                axes=("batch", "time"),
                caption=(
                    "Log of the sum of exp(score) over all tokens: near the fixed or learnt log "
                    "Z if the scores are self-normalised."
                ),
                unit="nats",
            )
        }


def log_normalisers(network: Network, view: View) -> Predictions:
    """log Z(h) = log Σ_w exp s(w | h) at each predicted position: s minus the log-probability.

    Sums over all tokens, so it costs as much as the softmax; in evaluation mode, without dropout.
    """
    hidden = network.hidden(view)
    normalised = network.predict(view, hidden)
    assert view.prediction_view.targets is not None
    targets = view.prediction_view.targets[normalised.target_mask][:, None]
    scores = network.scores(hidden, normalised.target_mask, targets).squeeze(1)
    return Predictions(log_probs=scores - normalised.log_probs, target_mask=normalised.target_mask)


class ImportanceSampledSoftmax(NoiseSampledLoss):
    """Importance sampling: loss = -s(w | h) + log (1/k) Σ_j exp(s(w_j | h)) / q(w_j).

    Bengio and Senécal 2003. Its gradient is maximum likelihood's with the expectation over the
    model estimated by self-normalised importance weights: biased for finite k, and of high variance
    where the model's likely tokens are rarely sampled. If the noise never samples them, the loss is
    unbounded below. (N, 1 + k) scores.
    """

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        ratios = scores[:, 1:] - log_noise[:, 1:]
        return torch.logsumexp(ratios, 1) - math.log(self.samples) - scores[:, 0]


class SampledSoftmax(NoiseSampledLoss):
    """Sampled softmax: -log softmax of s - log q over target and k noise tokens, at the target.

    Jean et al. 2015. The target is always in the normalised set, so the loss is never negative. (N,
    1 + k) scores.
    """

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        corrected = scores - log_noise
        return torch.logsumexp(corrected, 1) - corrected[:, 0]


class NoiseContrastiveEstimation(NoiseSampledLoss):
    """NCE: -log σ(Δ(w)) - Σ_j log σ(-Δ(w_j)),  Δ(w) = s(w | h) - log Z - log(k q(w)).

    Gutmann and Hyvärinen 2010; Mnih and Teh 2012. Δ is the log-odds that w came from the data and
    not from the k tokens w_j ~ q; at the optimum s(w | h) - log Z = log p(w | h), self-normalised,
    so the sum over the vocabulary is never computed. Z is fixed (log Z = 0) or one learned number
    for all contexts. With normalised scores the expected gradient is maximum likelihood's with each
    token's term times k q / (k q + p), which tends to one with k. Cost of the output layer: N (1 +
    k) W per step instead of N V W.
    """

    log_z: Tensor

    def __init__(
        self,
        noise: NoiseDistribution,
        *,
        samples: int,
        shared: bool = False,
        learned_z: bool = False,
    ) -> None:
        super().__init__(noise, samples=samples, shared=shared)
        if learned_z:
            self.log_z = nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("log_z", torch.zeros(()), persistent=False)

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        odds = scores - self.log_z - log_noise - math.log(self.samples)
        return F.softplus(-odds[:, 0]) + F.softplus(odds[:, 1:]).sum(1)

    def capture_internals(self, network: Network, view: View) -> dict[str, Capture]:
        captures = super().capture_internals(network, view)
        if isinstance(self.log_z, nn.Parameter):
            caption = "The log of the one normaliser learnt for all contexts."
            captures["log z"] = Capture(values=self.log_z.detach(), axes=(), caption=caption)
        return captures


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
    sampled_loss = make_sampled_loss(config, system.vocabulary)
    if sampled_loss is not None:
        assert isinstance(system, Assembly)
        system.set_sampled_loss(sampled_loss)


def make_sampled_loss(config: SampledLossConfig, vocabulary: Vocabulary) -> SampledLoss | None:
    """The sampled loss, or None for maximum likelihood."""
    if config.objective not in SAMPLED_OBJECTIVES:
        return None
    noise = NoiseDistribution(vocabulary, power=NOISE_POWERS[config.noise])
    samples, shared = config.noise_samples, config.noise_shared
    if config.objective == "nce":
        learned = config.log_z == "learned"
        return NoiseContrastiveEstimation(noise, samples=samples, shared=shared, learned_z=learned)
    loss_type = ImportanceSampledSoftmax if config.objective == "importance" else SampledSoftmax
    return loss_type(noise, samples=samples, shared=shared)
