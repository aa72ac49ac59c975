"""Sampled losses: train a softmax on a few noise tokens instead of the whole vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import (
    Backbone,
    CandidateLogits,
    Emission,
    HiddenStates,
    Network,
    Predictions,
    prediction_mask,
)
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.view import View
from lmlab.objectives.noise_distribution import NoiseDistribution


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

    def target_losses(self, scores: Tensor, log_noise: Tensor) -> Tensor:
        """(N,) losses, from s and log q of the target and of the noise, both (N, 1 + k)."""
        raise TypeError(f"{type(self).__name__} does not define target_losses")

    def check_parts(self, backbone: Backbone, emission: Emission) -> None:
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
        places = prediction_mask(view)
        assert view.prediction_view.targets is not None
        targets = view.prediction_view.targets[places][:, None]
        shape = (self.samples,) if self.shared else (len(targets), self.samples)
        noise = self.noise.sample(shape, generator=generator)
        own, common = (targets, noise) if self.shared else (torch.cat([targets, noise], 1), None)
        scores = network.scores(hidden, places, own, common)
        drawn = torch.cat([targets, noise.expand(len(targets), -1)], 1)
        lost = self.target_losses(scores, self.noise.log_prob(drawn).to(scores.dtype))
        return Predictions(log_probs=-lost, target_mask=places)

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
