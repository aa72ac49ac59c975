"""Importance sampling of the softmax's normaliser, and the sampled softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmlab.objectives.noise_sampling import NoiseSampledLoss


class ImportanceSampledSoftmax(NoiseSampledLoss):
    """loss = -s(w | h) + log (1/k) Σ_j exp(s(w_j | h)) / q(w_j): the normaliser is estimated.

    Bengio and Senécal 2003. Its gradient is maximum likelihood's with the expectation over the
    model taken by self-normalised importance weights: biased for finite k, and of a large variance
    where the model's few likely tokens are rarely drawn (002 §3.4.3.1). Where noise never draws
    what the model likes, the loss has no floor. (N, 1 + k) scores.
    """

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        ratios = scores[:, 1:] - log_noise[:, 1:]
        return torch.logsumexp(ratios, 1) - math.log(self.samples) - scores[:, 0]


class SampledSoftmax(NoiseSampledLoss):
    """loss = -log softmax of s - log q over the target and the k noise tokens, at the target.

    Jean et al. 2015. The target is always among those normalised over, so the loss is never
    negative. (N, 1 + k) scores.
    """

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        corrected = scores - log_noise
        return torch.logsumexp(corrected, 1) - corrected[:, 0]
