"""Posteriors against torch.distributions, which computes densities and divergences by itself."""

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


def numbers(count: int) -> torch.Tensor:
    return torch.randn(ROWS, count, generator=torch.Generator().manual_seed(0))


def uniforms(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def theirs(latent, posterior):
    """The same posterior and prior as torch has them."""
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
def test_densities_and_divergence_are_those_of_torch(latent):
    posterior = latent.posterior(numbers(latent.numbers))
    q, p = theirs(latent, posterior)
    drawn = posterior.reparameterised_sample(uniforms(5, ROWS, SIZE))
    torch.testing.assert_close(posterior.log_prob(drawn), q.log_prob(drawn))
    torch.testing.assert_close(latent.prior_log_prob(drawn), p.log_prob(drawn))
    torch.testing.assert_close(posterior.kl_divergence().sum(-1), kl_divergence(q, p))
    assert (posterior.kl_divergence() >= 0).all()
    torch.testing.assert_close(posterior.mean, q.mean)
    torch.testing.assert_close(posterior.std, q.variance.sqrt())


@pytest.mark.parametrize("latent", LATENTS, ids=lambda latent: type(latent).__name__)
def test_draws_have_the_posteriors_mean_and_spread(latent):
    """Over 40,000 draws, to 5 standard errors of a mean."""
    posterior = latent.posterior(numbers(latent.numbers))
    drawn = posterior.reparameterised_sample(uniforms(40_000, ROWS, SIZE))
    away = (drawn.mean(0) - posterior.mean).abs()
    assert (away < 5 * posterior.std / math.sqrt(40_000)).all()
    torch.testing.assert_close(drawn.std(0), posterior.std, rtol=0.02, atol=0.005)


@pytest.mark.parametrize("latent", LATENTS, ids=lambda latent: type(latent).__name__)
def test_where_the_encoder_says_nothing_the_posterior_is_the_prior(latent):
    silent = latent.posterior(torch.zeros(1, latent.numbers))
    torch.testing.assert_close(silent.kl_divergence(), torch.zeros(1, SIZE), atol=1e-5, rtol=0)


def test_a_gaussian_draw_has_the_gradients_of_its_mean_and_spread():
    given = numbers(2 * SIZE).requires_grad_()
    chosen = uniforms(ROWS, SIZE)
    DiagonalGaussian(SIZE).posterior(given).reparameterised_sample(chosen).sum().backward()
    noise = Normal(0.0, 1.0).icdf(chosen)
    # d softplus(x + c) / dx = σ(x + c), with softplus(c) = 1.
    slope = torch.sigmoid(given.detach()[:, SIZE:] + math.log(math.e - 1))
    torch.testing.assert_close(given.grad, torch.cat([torch.ones_like(noise), noise * slope], 1))


def test_a_bit_passes_the_gradient_of_its_probability_straight_through():
    given = numbers(SIZE).requires_grad_()
    drawn = BernoulliLatent(SIZE).posterior(given).reparameterised_sample(uniforms(ROWS, SIZE))
    assert set(drawn.detach().flatten().tolist()) == {0.0, 1.0}
    drawn.sum().backward()
    probability = torch.sigmoid(given.detach())
    torch.testing.assert_close(given.grad, probability * (1 - probability))


def test_normal_numbers_from_uniform_ones():
    """Φ⁻¹(0.975) = 1.959964 (any table); 0 and 1 give large numbers and no infinite ones."""
    found = standard_normal(torch.tensor([0.5, 0.975, 0.0, 1.0]))
    assert found[:2].tolist() == pytest.approx([0.0, 1.959964], abs=1e-6)
    assert torch.isfinite(found).all()
    assert found[3] > 5
