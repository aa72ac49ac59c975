"""Noise-contrastive estimation (NCE): classify the target against k noise tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import Network
from lmlab.core.view import View
from lmlab.objectives.noise_distribution import NoiseDistribution
from lmlab.objectives.noise_sampling import NoiseSampledLoss


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
        found = super().capture_internals(network, view)
        if isinstance(self.log_z, nn.Parameter):
            reading = "The log of the one normaliser learnt for all contexts."
            found["log z"] = Capture(values=self.log_z.detach(), axes=(), caption=reading)
        return found
