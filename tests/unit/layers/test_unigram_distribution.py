"""Unigram counts, and the noise and subsampling distributions that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.unigram_distribution import UnigramDistribution

VOCABULARY = Vocabulary(size=9)
"""Special tokens 0 to 4, and four words."""


def counted_distribution(*, power: float = 0.75, sample: float = 0.1) -> UnigramDistribution:
    """Words 5, 6, 7 seen 81, 16 and 1 times, word 8 never; two sentences and an unknown word."""
    distribution = UnigramDistribution(VOCABULARY, power=power, sample=sample)
    text = [2, *[5] * 81, 3, 2, *[6] * 16, 7, 1, 3]
    distribution.count(np.array(text, dtype=np.uint16))
    return distribution


def test_noise_is_powered_counts_without_special_tokens():
    """81^¾ = 27, 16^¾ = 8, 1 for the word seen once and for the unseen one: 37 in all."""
    noise = counted_distribution().noise()
    assert noise.tolist() == pytest.approx([0] * 5 + [27 / 37, 8 / 37, 1 / 37, 1 / 37])
    uniform = counted_distribution(power=0.0).noise()
    assert uniform[5:].tolist() == pytest.approx([0.25] * 4)


def test_log_prior_includes_the_unknown_word():
    """Seen once: 1 of 38."""
    prior = counted_distribution().log_prior().exp()
    assert prior.tolist() == pytest.approx([0, 1 / 38, 0, 0, 0, 27 / 38, 8 / 38, 1 / 38, 1 / 38])


def test_keep_probabilities_follow_word2vec_subsampling():
    """(√(n/t) + 1) t/n, at most 1; t is a tenth of the 99 counted: 9.9."""
    keep_probabilities = counted_distribution().keep_probabilities()
    assert keep_probabilities[5].item() == pytest.approx((math.sqrt(81 / 9.9) + 1) * 9.9 / 81)
    assert keep_probabilities[6].item() == pytest.approx(
        min(1.0, (math.sqrt(16 / 9.9) + 1) * 9.9 / 16)
    )
    assert (
        keep_probabilities[7:].tolist() == [1.0, 1.0]
        and keep_probabilities[:5].tolist() == [0.0] * 5
    )
    assert counted_distribution(sample=0.0).keep_probabilities().tolist() == [0.0] * 5 + [1.0] * 4


def test_noise_samples_follow_the_distribution():
    """Pearson's statistic with 3 degrees of freedom exceeds 30.7 with probability 1e-6."""
    distribution = counted_distribution()
    samples = distribution.sample_noise((20_000,), generator=torch.Generator().manual_seed(0))
    expected = distribution.noise()[5:] * 20_000
    counts = torch.bincount(samples, minlength=9)
    assert counts[:5].sum() == 0
    assert (((counts[5:] - expected) ** 2) / expected).sum().item() < 30.7
