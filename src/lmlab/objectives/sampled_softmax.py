"""Sampled softmax, and importance sampling of the softmax normaliser."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmlab.objectives.noise_sampling import NoiseSampledLoss


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
