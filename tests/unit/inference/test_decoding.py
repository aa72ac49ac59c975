"""Inverse-CDF token sampling: samples follow the distribution."""

from __future__ import annotations

import math

import torch

from lmlab.inference.decoding import sample_tokens


def test_sampled_tokens_follow_the_distribution():
    """Of 20,000 samples each share is within five standard errors √(p (1 - p) / n)."""
    distribution = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.1999, 0.0001, 0.0])
    sample_count = 20_000
    rows = distribution.log().expand(sample_count, -1)
    sampled = sample_tokens(rows, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(sampled, minlength=len(distribution)) / sample_count
    error = (distribution * (1 - distribution) / sample_count).sqrt()
    assert ((shares - distribution).abs() <= 5 * error).all(), (
        "and so none where the probability is zero"
    )


def test_each_row_is_sampled_from_its_own_distribution():
    log_probs = torch.full((3, 4), -math.inf)
    log_probs[0, 2] = log_probs[1, 0] = log_probs[2, 3] = 0.0
    for seed in range(5):
        sampled = sample_tokens(log_probs, generator=torch.Generator().manual_seed(seed))
        assert sampled.tolist() == [2, 0, 3]
