"""Tokens by inverting cumulated probabilities: their law, and what they never are."""

from __future__ import annotations

import math

import torch

from lmlab.inference.decoding import sample_tokens


def test_tokens_have_their_law():
    """Of 20,000 draws each share is within five standard errors √(p (1 - p) / n)."""
    law = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.1999, 0.0001, 0.0])
    draws = 20_000
    rows = law.log().expand(draws, -1)
    drawn = sample_tokens(rows, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=len(law)) / draws
    error = (law * (1 - law) / draws).sqrt()
    assert ((shares - law).abs() <= 5 * error).all(), "and so none where the probability is zero"


def test_rows_are_drawn_each_from_its_own():
    law = torch.full((3, 4), -math.inf)
    law[0, 2] = law[1, 0] = law[2, 3] = 0.0
    for seed in range(5):
        drawn = sample_tokens(law, generator=torch.Generator().manual_seed(seed))
        assert drawn.tolist() == [2, 0, 3]
