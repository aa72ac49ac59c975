"""Token and Gaussian noise: its amount, its positions, and its generator."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import TokenNoise, add_gaussian_noise

VOCABULARY = Vocabulary(size=9)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_token_noise_masks_a_share_of_tokens_but_no_padding():
    tokens, lengths = torch.full((200, 50), 7), torch.full((200,), 40)
    noisy = TokenNoise(0.3, VOCABULARY)(tokens, lengths, generator=seeded())
    assert (noisy[:, 40:] == 7).all()
    assert set(noisy.unique().tolist()) == {7, VOCABULARY.mask}
    # 8,000 tokens: a standard error of √(0.3 · 0.7 / 8000) = 0.005.
    share = (noisy[:, :40] == VOCABULARY.mask).double().mean().item()
    assert share == pytest.approx(0.3, abs=0.02)
    assert (tokens == 7).all(), "what came in is left alone"


@pytest.mark.parametrize(
    ("vocabulary", "expected"), [(VOCABULARY, 4), (Vocabulary(size=9, mask=None), 1)]
)
def test_noise_token_is_mask_or_unknown(vocabulary: Vocabulary, expected: int):
    assert TokenNoise(0.5, vocabulary).noise_token == expected


def test_gaussian_noise_is_relative_to_the_latent_norm():
    """A latent of 10,000 numbers moves by `rate` times its norm, to 3 %."""
    latents = torch.randn(2, 10_000, generator=seeded()) * torch.tensor([[1.0], [50.0]])
    noise = add_gaussian_noise(latents, 0.4, generator=seeded()) - latents
    torch.testing.assert_close(noise.norm(dim=1), 0.4 * latents.norm(dim=1), rtol=0.03, atol=0)


def test_zero_noise_is_identity_and_uses_no_randomness():
    generator = seeded()
    before = generator.get_state()
    latents, tokens = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)
    assert add_gaussian_noise(latents, 0.0, generator=generator) is latents
    noise = TokenNoise(0.0, VOCABULARY)
    assert noise(tokens, torch.tensor([3, 3]), generator=generator) is tokens
    assert torch.equal(generator.get_state(), before)
