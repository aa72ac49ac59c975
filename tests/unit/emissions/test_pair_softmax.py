"""Normalisers of pairs as inner products: equal to the clear version, and never infinite."""

from __future__ import annotations

import pytest
import torch

from lmlab.emissions import pair_softmax
from lmlab.emissions.pair_softmax import (
    pair_log_normalisers,
    pair_log_normalisers_clear,
    pairs_within,
)


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("rows_at_once", [1, 12, 1024])
def test_fast_normalisers_equal_the_clear_ones(rows_at_once, monkeypatch):
    monkeypatch.setattr(pair_softmax, "_ROWS_AT_ONCE", rows_at_once)
    first, second = draw(5, 6, 4, seed=0), draw(5, 6, 4, seed=1)
    weight, bias = draw(20, 4, seed=2), draw(20, seed=3)
    with torch.no_grad():
        bias[3] = float("-inf")
    given = (first, second, weight, bias)
    fast, clear = pair_log_normalisers(*given), pair_log_normalisers_clear(*given)
    torch.testing.assert_close(fast, clear)
    uneven = torch.linspace(-1, 2, fast.numel()).view_as(fast)
    for found, wanted in zip(
        torch.autograd.grad((fast * uneven).sum(), given),
        torch.autograd.grad((clear * uneven).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_vectors_that_like_tokens_far_apart_leave_a_finite_normaliser():
    """x likes token 0 by 200 nats and y token 1 by 200: the true value is log 2 + 0."""
    weight = torch.tensor([[1.0], [-1.0]])
    first, second = torch.tensor([[[100.0]]]), torch.tensor([[[-100.0]]])
    found = pair_log_normalisers(first, second, weight, torch.zeros(2))
    # Too high rather than too low: probabilities then sum to less than one, never to more.
    assert found.isfinite().all() and found.item() >= torch.tensor(2.0).log().item()


def test_pairs_are_in_the_order_of_rows():
    first, second = pairs_within(2, 3, torch.device("cpu"))
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert len(pairs_within(None, 3, torch.device("cpu"))[0]) == 9
