"""Counts of words, and the laws of noise and of leaving out that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.unigram_distribution import UnigramDistribution

VOCABULARY = Vocabulary(size=9)
"""Symbols 0 to 4, and four words."""


def met_law(*, power: float = 0.75, sample: float = 0.1) -> UnigramDistribution:
    """Words 5, 6, 7 seen 81, 16 and 1 times, word 8 never; two sentences and an unknown word."""
    law = UnigramDistribution(VOCABULARY, power=power, sample=sample)
    text = [2, *[5] * 81, 3, 2, *[6] * 16, 7, 1, 3]
    law.count(np.array(text, dtype=np.uint16))
    return law


def test_noise_is_by_counts_to_a_power_and_no_symbol_is_drawn():
    """81^¾ = 27, 16^¾ = 8, 1 for the word seen once and for the one that never came: 37 in all."""
    noise = met_law().noise()
    assert noise.tolist() == pytest.approx([0] * 5 + [27 / 37, 8 / 37, 1 / 37, 1 / 37])
    uniform = met_law(power=0.0).noise()
    assert uniform[5:].tolist() == pytest.approx([0.25] * 4)


def test_the_prior_has_the_unknown_word_too():
    """Seen once: 1 of 38."""
    prior = met_law().log_prior().exp()
    assert prior.tolist() == pytest.approx([0, 1 / 38, 0, 0, 0, 27 / 38, 8 / 38, 1 / 38, 1 / 38])


def test_frequent_words_are_left_out_by_word2vecs_formula():
    """(√(n/t) + 1) t/n, at most 1; t is a tenth of the 99 counted: 9.9."""
    kept = met_law().keep_probabilities()
    assert kept[5].item() == pytest.approx((math.sqrt(81 / 9.9) + 1) * 9.9 / 81)
    assert kept[6].item() == pytest.approx(min(1.0, (math.sqrt(16 / 9.9) + 1) * 9.9 / 16))
    assert kept[7:].tolist() == [1.0, 1.0] and kept[:5].tolist() == [0.0] * 5
    assert met_law(sample=0.0).keep_probabilities().tolist() == [0.0] * 5 + [1.0] * 4


def test_draws_follow_the_law():
    """Pearson's statistic with 3 degrees of freedom exceeds 30.7 with probability 1e-6."""
    law = met_law()
    drawn = law.sample_noise((20_000,), generator=torch.Generator().manual_seed(0))
    expected = law.noise()[5:] * 20_000
    counts = torch.bincount(drawn, minlength=9)
    assert counts[:5].sum() == 0
    assert (((counts[5:] - expected) ** 2) / expected).sum().item() < 30.7
