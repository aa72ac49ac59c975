"""Denoising noise (Vincent et al. 2008): token masking and Gaussian noise on latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True)
class TokenNoise:
    """Token masking with probability `rate`, by <mask> (<unk> if there is no mask token)."""

    rate: float
    vocabulary: Vocabulary

    def __call__(
        self, tokens: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The tokens (B, T) with some of them masked; padding is unchanged."""
        if self.rate == 0:
            return tokens
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        masked = sample_uniform(tokens.shape, tokens.device, generator=generator) < self.rate
        return tokens.masked_fill(masked & (positions < lengths[:, None]), self.noise_token)

    @property
    def noise_token(self) -> int:
        """The replacement token."""
        for token in (self.vocabulary.mask, self.vocabulary.unknown):
            if token is not None:
                return token
        return self.vocabulary.pad


def add_gaussian_noise(
    latents: Tensor, rate: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Latents (…, L) with Gaussian noise of `rate` times their own RMS.

    Relative to the latent's size, so that no encoder escapes it by making latents large.
    """
    if rate == 0:
        return latents
    device = latents.device if generator is None else generator.device
    noise = torch.randn(latents.shape, generator=generator, device=device).to(latents)
    size = latents.detach().square().mean(-1, keepdim=True).sqrt()
    return latents + rate * size * noise


def sample_uniform(
    shape: tuple[int, ...] | torch.Size,
    device: torch.device,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Numbers in [0, 1) on a device, sampled on the generator's device."""
    generator_device = device if generator is None else generator.device
    return torch.rand(shape, generator=generator, device=generator_device).to(device)
