"""Evidence lower bound (ELBO) of a text VAE: KL annealing, free bits; importance-weighted bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import SentenceEncoder
from lmlab.core.batch import Batch
from lmlab.core.capture import NON_NEGATIVE, Capture
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Objective, Predictions
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View, causal_view
from lmlab.inference.latent_distributions import (
    LatentFamily,
    LatentPosterior,
    seed_of,
    sobol_points,
)
from lmlab.layers.noise import TokenNoise, add_gaussian_noise, sample_uniform
from lmlab.objectives.objective_interfaces import LatentNetwork

BoundName = Literal["elbo", "importance"]
POSITIONS_PER_CHUNK = 16384
"""Positions decoded at once when a batch is scored with several latent samples."""


class ELBO(Objective):
    """ELBO: log p(s) ≥ E_q(z|s)[log p(s | z)] - KL(q(z | s) || p(z)) (Kingma and Welling 2014).

    Training samples one latent per sentence and weights the KL by β, annealed from 0 to 1 over
    `anneal_steps` (Bowman et al. 2016); the KL of each latent dimension counts as at least
    `free_bits` nats (Kingma et al. 2016; here per sentence, so that none depends on its batch).
    `token_noise` erases encoder input tokens, `word_dropout` decoder input tokens, `latent_noise`
    perturbs the latent: in training only.

    Scoring takes `samples` points of q per sentence, determined by its tokens and the seed of
    `generator` (see `sobol_points`). `bound` is "elbo", whose KL is exact and belongs to no token,
    or "importance", log 1/S Σ_s p(s, z_s) / q(z_s | s) (Burda et al. 2016), tighter with more
    points. Both are bounds on average over seeds. Cost: one decoder pass per point.
    """

    kind: ClassVar[ScoreKind] = "bound"

    def __init__(
        self,
        encoder: SentenceEncoder,
        latent: LatentFamily,
        *,
        anneal_steps: int = 0,
        free_bits: float = 0.0,
        latent_noise: float = 0.0,
        token_noise: TokenNoise | None = None,
        word_dropout: TokenNoise | None = None,
        samples: int = 1,
        bound: BoundName = "elbo",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.to_posterior = nn.Linear(encoder.width, latent.numbers)
        self.latent = latent
        self.anneal_steps = anneal_steps
        self.free_bits = free_bits
        self.latent_noise = latent_noise
        self.token_noise = token_noise
        self.word_dropout = word_dropout
        self.samples = samples
        self.bound: BoundName = bound
        self.weight = 1.0
        """β, the KL weight at this step."""

    def begin_step(self, step: int) -> None:
        self.weight = min(1.0, step / self.anneal_steps) if self.anneal_steps else 1.0

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        view = causal_view(batch)
        if self.word_dropout is None or not self.training:
            return view
        inputs = self.word_dropout(view.inputs[:, 1:], view.lengths - 1, generator=generator)
        return replace(view, inputs=torch.cat([view.inputs[:, :1], inputs], dim=1))

    def posterior(
        self, batch: Batch, *, generator: torch.Generator | None = None
    ) -> LatentPosterior:
        """q(z | s) of each row; the encoder input is all but the start token."""
        tokens, lengths = batch.tokens[:, 1:], (batch.lengths - 1).clamp(min=0)
        if self.token_noise is not None and self.training:
            tokens = self.token_noise(tokens, lengths, generator=generator)
        return self.latent.posterior(self.to_posterior(self.encoder(tokens, lengths)))

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) the posterior mean."""
        return self.posterior(batch).mean

    def sample_latents(self, rows: int, *, generator: torch.Generator | None = None) -> Tensor:
        like = self.to_posterior.weight
        shape = (rows, self.latent.size)
        latents = self.latent.sample_prior(sample_uniform(shape, like.device, generator=generator))
        return latents.to(like)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        assert isinstance(network, LatentNetwork)
        posterior = self.posterior(batch, generator=generator)
        mean = posterior.mean
        latents = posterior.reparameterised_sample(
            sample_uniform(mean.shape, mean.device, generator=generator)
        )
        if self.training:
            latents = add_gaussian_noise(latents, self.latent_noise, generator=generator)
        view = self.view(batch, generator=generator)
        predictions = network.target_log_probs(view, network.state_from_latents(latents))
        count = torch.tensor(float(predictions.log_probs.numel()), device=mean.device)
        # A row without targets is no sentence and has no KL.
        divergence = posterior.kl_divergence()[predictions.target_mask.any(1)]
        penalty = divergence.clamp(min=self.free_bits).sum()
        parts = {
            "reconstruction": Loss(-predictions.log_probs.sum(), count),
            "divergence": Loss(divergence.sum(), count),
        }
        return Loss(parts["reconstruction"].total + self.weight * penalty, count, parts), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        assert isinstance(network, LatentNetwork)
        posterior, view = self.posterior(batch), causal_view(batch)
        uniforms = sobol_points(
            batch.tokens,
            batch.lengths,
            count=self.samples,
            dimensions=self.latent.size,
            seed=seed_of(generator),
        )
        latents = posterior.reparameterised_sample(uniforms)
        per_token = self._reconstructions(network, view, latents)
        if self.bound == "elbo":
            per_sequence = -posterior.kl_divergence().sum(-1)
            per_token = per_token.mean(0)
        else:
            log_ratios = self.latent.prior_log_prob(latents) - posterior.log_prob(latents)
            joint = per_token.sum(-1) + log_ratios
            total = torch.logsumexp(joint, 0) - math.log(self.samples)
            # Token terms at points weighted by their posterior; the remainder belongs to no token.
            per_token = (torch.softmax(joint, 0)[..., None] * per_token).sum(0)
            per_sequence = total - per_token.sum(-1)
        empty = view.lengths == 0
        return LogProbs(
            per_token=per_token, per_sequence=per_sequence.masked_fill(empty, 0.0), kind=self.kind
        )

    def _reconstructions(self, network: LatentNetwork, view: View, latents: Tensor) -> Tensor:
        """(S, B, T) log p(s_t | s_<t, z) for latents (S, B, L), in chunks of points."""
        group = max(1, POSITIONS_PER_CHUNK // max(1, view.inputs.numel()))
        log_probs = []
        for points in latents.split(group):
            repeated = _repeated(view, len(points))
            state = network.state_from_latents(points.flatten(0, 1))
            predictions: Predictions = network.target_log_probs(repeated, state)
            log_probs.append(predictions.to_dense().unflatten(0, (len(points), -1)))
        return torch.cat(log_probs)

    def capture_internals(self, network: Network, batch: Batch) -> dict[str, Capture]:
        posterior = self.posterior(batch)
        return {
            "latent means": Capture(
                values=posterior.mean,
                axes=("batch", "unit"),
                caption="The mean of each sentence's posterior; where all sentences have the same, "
                "the posterior has collapsed.",
            ),
            "latent spreads": Capture(
                values=posterior.std,
                axes=("batch", "unit"),
                caption="The standard deviation of each sentence's posterior; 1, as the prior's, "
                "carries no information.",
                bounds=NON_NEGATIVE,
            ),
            "divergence": Capture(
                values=posterior.kl_divergence().mean(0),
                axes=("unit",),
                caption="KL(posterior ‖ prior) of each latent dimension, mean over sentences; a "
                "dimension near zero is unused, and all of them near zero is a collapse.",
                bounds=NON_NEGATIVE,
                unit="nats",
            ),
        }


def _repeated(view: View, times: int) -> View:
    """Repeat the rows of a view."""
    assert view.targets is not None
    return replace(
        view,
        inputs=view.inputs.repeat(times, 1),
        lengths=view.lengths.repeat(times),
        targets=view.targets.repeat(times, 1),
        clean_positions=None,
    )
