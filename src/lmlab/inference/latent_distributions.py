"""VAE latents: Gaussian (diagonal, full) or Bernoulli prior and posterior, KL; Sobol points.

Each family turns an encoder's outputs into a posterior. All samples are made from uniform numbers,
so that the same code serves random samples in training and quasi-random points in scoring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
MIN_UNIFORM = 2.0**-25
"""Uniform numbers stay this far from 0 and 1, where a Gaussian would be infinite."""
MIN_STD = 1e-6
SOFTPLUS_INVERSE_OF_ONE = math.log(math.e - 1)
"""softplus(SOFTPLUS_INVERSE_OF_ONE) = 1: at encoder output 0 the scale is that of the prior."""


class LatentPosterior(Protocol):
    """Approximate posterior q(z | s) for B rows of L latent dimensions."""

    @property
    def mean(self) -> Tensor:
        """(B, L)"""
        ...

    @property
    def std(self) -> Tensor:
        """(B, L) standard deviation of each dimension."""
        ...

    def reparameterised_sample(self, uniforms: Tensor) -> Tensor:
        """(…, B, L) latents from uniform numbers of that shape, differentiable in q."""
        ...

    def log_prob(self, latents: Tensor) -> Tensor:
        """(…, B) log q(z | s)."""
        ...

    def kl_divergence(self) -> Tensor:
        """(B, L) KL(q || p) in nats, by the chain rule over dimensions: the sum is exact."""
        ...


class LatentFamily(Protocol):
    """A family of latent distributions."""

    @property
    def size(self) -> int:
        """L."""
        ...

    @property
    def numbers(self) -> int:
        """Number of encoder outputs that parameterise a posterior."""
        ...

    def posterior(self, numbers: Tensor) -> LatentPosterior:
        """q(z | s) from (B, `numbers`)."""
        ...

    def sample_prior(self, uniforms: Tensor) -> Tensor:
        """(…, L) samples of the prior from uniform numbers."""
        ...

    def prior_log_prob(self, latents: Tensor) -> Tensor:
        """(…) log p(z) of (…, L)."""
        ...


@dataclass(frozen=True)
class DiagonalGaussian:
    """Diagonal Gaussian: p(z) = N(0, I), q(z | s) = N(μ, diag σ²) (Kingma and Welling 2014)."""

    size: int

    @property
    def numbers(self) -> int:
        return 2 * self.size

    def posterior(self, numbers: Tensor) -> LatentPosterior:
        mean, raw_std = numbers.chunk(2, dim=-1)
        return DiagonalPosterior(mean, _positive(raw_std))

    def sample_prior(self, uniforms: Tensor) -> Tensor:
        return standard_normal(uniforms)

    def prior_log_prob(self, latents: Tensor) -> Tensor:
        return (-0.5 * latents**2 - HALF_LOG_TWO_PI).sum(-1)


@dataclass(frozen=True)
class FullGaussian(DiagonalGaussian):
    """Full-covariance Gaussian: p(z) = N(0, I), q(z | s) = N(μ(s), C(s) C(s)ᵀ), C lower triangular.

    A covariance of the prior would be absorbed by the decoder's first linear map, so the prior is
    the standard one. L (L + 3) / 2 numbers, cost L² per row.
    """

    @property
    def numbers(self) -> int:
        return self.size * (self.size + 3) // 2

    def posterior(self, numbers: Tensor) -> LatentPosterior:
        mean, raw_std, off_diagonal = numbers.split(
            [self.size, self.size, self.numbers - 2 * self.size], dim=-1
        )
        row, column = torch.tril_indices(self.size, self.size, -1, device=numbers.device)
        lower = numbers.new_zeros(*off_diagonal.shape[:-1], self.size, self.size)
        lower[..., row, column] = off_diagonal
        return FullPosterior(mean, lower + torch.diag_embed(_positive(raw_std)))


@dataclass(frozen=True)
class BernoulliLatent:
    """Bernoulli latents: p(z) = ½ per bit, q(z | s) = Π π_j^z_j (1 - π_j)^(1 - z_j).

    π = σ(encoder). A sample has the gradient of its probability, the straight-through estimator
    (Bengio et al. 2013): biased in training, but without the variance of a score function. Scores
    are not affected: samples and KL divergence are exact.
    """

    size: int

    @property
    def numbers(self) -> int:
        return self.size

    def posterior(self, numbers: Tensor) -> LatentPosterior:
        return BernoulliPosterior(numbers)

    def sample_prior(self, uniforms: Tensor) -> Tensor:
        return (uniforms < 0.5).to(torch.get_default_dtype())

    def prior_log_prob(self, latents: Tensor) -> Tensor:
        return torch.full_like(latents, -math.log(2)).sum(-1)


@dataclass(frozen=True, eq=False)
class DiagonalPosterior:
    """N(μ, diag σ²)."""

    mean: Tensor
    std: Tensor

    def reparameterised_sample(self, uniforms: Tensor) -> Tensor:
        return self.mean + self.std * standard_normal(uniforms).to(self.mean)

    def log_prob(self, latents: Tensor) -> Tensor:
        standard = (latents - self.mean) / self.std
        return (-0.5 * standard**2 - self.std.log() - HALF_LOG_TWO_PI).sum(-1)

    def kl_divergence(self) -> Tensor:
        return 0.5 * (self.std**2 + self.mean**2 - 1) - self.std.log()


@dataclass(frozen=True, eq=False)
class FullPosterior:
    """N(μ, C Cᵀ), C (B, L, L) lower triangular with a positive diagonal."""

    mean: Tensor
    factor: Tensor

    @property
    def std(self) -> Tensor:
        std: Tensor = self.factor.norm(dim=-1)
        return std

    def reparameterised_sample(self, uniforms: Tensor) -> Tensor:
        noise = standard_normal(uniforms).to(self.mean)
        return self.mean + (self.factor @ noise[..., None]).squeeze(-1)

    def log_prob(self, latents: Tensor) -> Tensor:
        difference = (latents - self.mean)[..., None]
        standard = torch.linalg.solve_triangular(self.factor, difference, upper=False).squeeze(-1)
        diagonal = self.factor.diagonal(dim1=-2, dim2=-1)
        log_probs: Tensor = (-0.5 * standard**2 - diagonal.log() - HALF_LOG_TWO_PI).sum(-1)
        return log_probs

    def kl_divergence(self) -> Tensor:
        # Of q(z_i | z_<i), whose variance is C_ii² and whose mean varies by the rest of its row.
        diagonal = self.factor.diagonal(dim1=-2, dim2=-1)
        rows = (self.factor**2).sum(-1)
        return 0.5 * (rows + self.mean**2 - 1) - diagonal.log()


@dataclass(frozen=True, eq=False)
class BernoulliPosterior:
    """Independent bits, parameterised by their log-odds."""

    log_odds: Tensor

    @property
    def mean(self) -> Tensor:
        return self.log_odds.sigmoid()

    @property
    def std(self) -> Tensor:
        return (self.mean * (1 - self.mean)).sqrt()

    def reparameterised_sample(self, uniforms: Tensor) -> Tensor:
        mean = self.mean
        bits = (uniforms.to(mean.device) < mean).to(mean)
        return bits + (mean - mean.detach())  # zero, but with the gradient of the mean

    def log_prob(self, latents: Tensor) -> Tensor:
        return (latents * self.log_odds - F.softplus(self.log_odds)).sum(-1)

    def kl_divergence(self) -> Tensor:
        # Σ_z q log(2 q): log 2 less the entropy.
        ones, zeros = F.logsigmoid(self.log_odds), F.logsigmoid(-self.log_odds)
        return math.log(2) + self.mean * ones + (1 - self.mean) * zeros


def standard_normal(uniforms: Tensor) -> Tensor:
    """Φ⁻¹ of uniform numbers, computed in double precision, returned in the default one."""
    clamped = uniforms.double().clamp(MIN_UNIFORM, 1 - MIN_UNIFORM)
    normal: Tensor = torch.special.ndtri(clamped)
    return normal.to(torch.get_default_dtype())


def _positive(numbers: Tensor) -> Tensor:
    """Softplus scaled to 1 at 0; linear where large, so that nothing explodes."""
    return F.softplus(numbers + SOFTPLUS_INVERSE_OF_ONE) + MIN_STD


GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""The odd number nearest to 2⁶⁴ over the golden ratio: its multiples fill the ring evenly."""


def sobol_points(
    tokens: Tensor, lengths: Tensor, *, count: int, dimensions: int, seed: int = 0
) -> Tensor:
    """(S, B, L) Sobol points in (0, 1): `count` of L `dimensions` per row of (B, T) tokens.

    Each row is shifted round the unit cube by its own offset (Cranley and Patterson 1976): each
    point is uniform, so a mean over them is unbiased over seeds, and they are more even than
    independent ones. They depend on a row's tokens and the seed only, so that a sentence has the
    same score alone, padded and in any batch. In double precision. Cost S · B · L.
    """
    shifts = _uniform(_row_hash(tokens, lengths, seed)[:, None] + _multiples(dimensions, tokens))
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=False)
    points = engine.draw(count, dtype=torch.float64).to(tokens.device)
    shifted = (points[:, None] + shifts).frac()
    return shifted.clamp(min=2.0**-53, max=1 - 2.0**-53)


def seed_of(generator: torch.Generator | None) -> int:
    """The initial seed of a generator, however often it was used; 0 if there is none.

    Points depend on seeds, not on earlier samples.
    """
    return 0 if generator is None else generator.initial_seed()


def _row_hash(tokens: Tensor, lengths: Tensor, seed: int) -> Tensor:
    """(B,) 64-bit hash of each row's tokens and their positions, without padding."""
    time = tokens.shape[1]
    hashes = _mix_bits(_mix_bits(tokens) + _multiples(time, tokens))
    mask = torch.arange(time, device=tokens.device) < lengths[:, None]
    return _mix_bits((hashes * mask).sum(1) + _mix_bits(torch.full_like(lengths, _signed(seed))))


def _multiples(count: int, like: Tensor) -> Tensor:
    return torch.arange(1, count + 1, device=like.device) * GOLDEN


def _mix_bits(bits: Tensor) -> Tensor:
    """Splitmix64's finaliser (Steele et al. 2014): every output bit depends on every input bit."""
    bits = (bits ^ _logical_shift(bits, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    bits = (bits ^ _logical_shift(bits, 27)) * (0x94D049BB133111EB - 2**64)
    return bits ^ _logical_shift(bits, 31)


def _logical_shift(bits: Tensor, count: int) -> Tensor:
    """A logical shift to the right; torch's own is arithmetic."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _uniform(bits: Tensor) -> Tensor:
    """53 of the 64 bits as a number in [0, 1), in double precision."""
    return _logical_shift(_mix_bits(bits), 11).double() * 2.0**-53


def _signed(seed: int) -> int:
    """A seed of up to 64 bits as the signed number with the same bits."""
    return (seed + 2**63) % 2**64 - 2**63
