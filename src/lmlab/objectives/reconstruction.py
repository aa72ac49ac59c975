"""Autoencoder objective: reconstruct a sentence from its latent; token or latent noise optional."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import AutoencoderBackbone
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Objective, Predictions
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View, autoencoding_view, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import TokenNoise, add_gaussian_noise
from lmlab.objectives.objective_interfaces import sum_losses


@runtime_checkable
class AutoencodingNetwork(Network, Protocol):
    """A network that encodes a text into a latent vector and decodes it from there."""

    vocabulary: Vocabulary
    backbone: AutoencoderBackbone

    def state_from_latents(self, latents: Tensor) -> State:
        """The decoder's initial state for latents (B, latent)."""
        ...


class ReconstructionObjective(Objective):
    """Autoencoder: log p(s | z(s)); the sentence is encoded into a vector and decoded from it.

    `token_noise` erases input tokens, with clean targets (denoising autoencoder, Vincent et al.
    2008), and `latent_noise` perturbs the vector, both in training only. It is no distribution over
    sentences: the target itself is the input.
    """

    kind: ClassVar[ScoreKind] = "reconstruction"

    def __init__(self, *, latent_noise: float = 0.0, token_noise: TokenNoise | None = None) -> None:
        super().__init__()
        self.latent_noise = latent_noise
        self.token_noise = token_noise

    def reconstruction_view(self, batch: Batch) -> View:
        """The view without noise: the text is the encoder's input and the target."""
        return autoencoding_view(batch)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        view = self.reconstruction_view(batch)
        if self.token_noise is None or not self.training:
            return view
        inputs = self.token_noise(view.inputs, view.lengths, generator=generator)
        return replace(view, inputs=inputs)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        view = self.view(batch, generator=generator)
        noise = self.latent_noise if self.training else 0.0
        losses = -_decode_latents(network, view, noise, generator).log_probs
        return sum_losses(losses), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = _decode_latents(network, self.reconstruction_view(batch), 0.0, generator)
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind)

    def reconstruct_with_noise(
        self,
        network: Network,
        batch: Batch,
        *,
        latent_noise: float,
        token_noise: float,
        generator: torch.Generator | None,
    ) -> LogProbs:
        """Reconstruction with noise of the given strength on latents and input tokens."""
        view = self.reconstruction_view(batch)
        assert isinstance(network, AutoencodingNetwork)
        erase = TokenNoise(token_noise, network.vocabulary)
        view = replace(view, inputs=erase(view.inputs, view.lengths, generator=generator))
        predictions = _decode_latents(network, view, latent_noise, generator)
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind)


class TeacherForcedReconstruction(ReconstructionObjective):
    """Teacher-forced autoencoder: log p(s | z(s)) = Σ_t log p(s_t | s_<t, z(s)).

    The decoder's inputs are the preceding tokens, without noise.
    """

    def reconstruction_view(self, batch: Batch) -> View:
        source = replace(autoencoding_view(batch), targets=None, clean_positions=None)
        return replace(source, decoder=causal_view(batch))


def _decode_latents(
    network: Network, view: View, latent_noise: float, generator: torch.Generator | None
) -> Predictions:
    """Log-probabilities of the targets, given the latent of the input."""
    assert isinstance(network, AutoencodingNetwork)
    latents = add_gaussian_noise(network.backbone.encode(view), latent_noise, generator=generator)
    state = network.state_from_latents(latents)
    return network.target_log_probs(view.prediction_view, state)
