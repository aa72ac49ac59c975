"""Posteriors against the densities and KL divergences of torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli, Independent, MultivariateNormal, Normal, kl_divergence

from lmlab.inference.latent_distributions import (
    BernoulliLatent,
    DiagonalGaussian,
    FullGaussian,
    standard_normal,
)

SIZE, ROWS = 3, 4


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def random_parameters(count: int) -> torch.Tensor:
    return torch.randn(ROWS, count, generator=torch.Generator().manual_seed(0))


def uniforms(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def torch_distributions(latent, posterior):
    """The same posterior and prior as torch.distributions."""
    if isinstance(latent, BernoulliLatent):
        half = torch.full((ROWS, SIZE), 0.5)
        return (Independent(Bernoulli(posterior.mean), 1), Independent(Bernoulli(half), 1))
    prior = MultivariateNormal(torch.zeros(ROWS, SIZE), torch.eye(SIZE).expand(ROWS, SIZE, SIZE))
    if isinstance(latent, FullGaussian):
        return MultivariateNormal(posterior.mean, scale_tril=posterior.factor), prior
    spread = torch.diag_embed(posterior.std)
    return MultivariateNormal(posterior.mean, scale_tril=spread), prior


LATENTS = [DiagonalGaussian(SIZE), FullGaussian(SIZE), BernoulliLatent(SIZE)]


@pytest.mark.parametrize("latent", LATENTS, ids=lambda latent: type(latent).__name__)
def test_densities_and_kl_divergence_equal_torch(latent):
    posterior = latent.posterior(random_parameters(latent.numbers))
    q, p = torch_distributions(latent, posterior)
    sample = posterior.reparameterised_sample(uniforms(5, ROWS, SIZE))
    torch.testing.assert_close(posterior.log_prob(sample), q.log_prob(sample))
    torch.testing.assert_close(latent.prior_log_prob(sample), p.log_prob(sample))
    torch.testing.assert_close(posterior.kl_divergence().sum(-1), kl_divergence(q, p))
    assert (posterior.kl_divergence() >= 0).all()
    torch.testing.assert_close(posterior.mean, q.mean)
    torch.testing.assert_close(posterior.std, q.variance.sqrt())


@pytest.mark.parametrize("latent", LATENTS, ids=lambda latent: type(latent).__name__)
def test_samples_have_the_posterior_mean_and_std(latent):
    """Over 40,000 samples, to 5 standard errors of a mean."""
    posterior = latent.posterior(random_parameters(latent.numbers))
    samples = posterior.reparameterised_sample(uniforms(40_000, ROWS, SIZE))
    deviation = (samples.mean(0) - posterior.mean).abs()
    assert (deviation < 5 * posterior.std / math.sqrt(40_000)).all()
    torch.testing.assert_close(samples.std(0), posterior.std, rtol=0.02, atol=0.005)


@pytest.mark.parametrize("latent", LATENTS, ids=lambda latent: type(latent).__name__)
def test_zero_encoder_output_gives_the_prior(latent):
    posterior = latent.posterior(torch.zeros(1, latent.numbers))
    torch.testing.assert_close(posterior.kl_divergence(), torch.zeros(1, SIZE), atol=1e-5, rtol=0)


def test_gaussian_reparameterisation_gradients():
    parameters = random_parameters(2 * SIZE).requires_grad_()
    uniform_noise = uniforms(ROWS, SIZE)
    DiagonalGaussian(SIZE).posterior(parameters).reparameterised_sample(
        uniform_noise
    ).sum().backward()
    noise = Normal(0.0, 1.0).icdf(uniform_noise)
    # d softplus(x + c) / dx = σ(x + c), with softplus(c) = 1.
    slope = torch.sigmoid(parameters.detach()[:, SIZE:] + math.log(math.e - 1))
    torch.testing.assert_close(
        parameters.grad, torch.cat([torch.ones_like(noise), noise * slope], 1)
    )


def test_bernoulli_sample_uses_the_straight_through_gradient():
    logits = random_parameters(SIZE).requires_grad_()
    sample = BernoulliLatent(SIZE).posterior(logits).reparameterised_sample(uniforms(ROWS, SIZE))
    assert set(sample.detach().flatten().tolist()) == {0.0, 1.0}
    sample.sum().backward()
    probability = torch.sigmoid(logits.detach())
    torch.testing.assert_close(logits.grad, probability * (1 - probability))


def test_standard_normal_inverts_the_cdf():
    """Φ⁻¹(0.975) = 1.959964 (any table); 0 and 1 give large numbers and no infinite ones."""
    quantiles = standard_normal(torch.tensor([0.5, 0.975, 0.0, 1.0]))
    assert quantiles[:2].tolist() == pytest.approx([0.0, 1.959964], abs=1e-6)
    assert torch.isfinite(quantiles).all()
    assert quantiles[3] > 5
