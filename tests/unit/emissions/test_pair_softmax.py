"""Pair normalisers as inner products: equal to the reference, and always finite."""

from __future__ import annotations

import pytest
import torch

from lmlab.emissions import pair_softmax
from lmlab.emissions.pair_softmax import (
    pair_log_normalisers,
    pair_log_normalisers_clear,
    pairs_within,
)


def random_vectors(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("rows_at_once", [1, 12, 1024])
def test_pair_normalisers_equal_reference_with_gradients(rows_at_once, monkeypatch):
    monkeypatch.setattr(pair_softmax, "_ROWS_AT_ONCE", rows_at_once)
    first, second = random_vectors(5, 6, 4, seed=0), random_vectors(5, 6, 4, seed=1)
    weight, bias = random_vectors(20, 4, seed=2), random_vectors(20, seed=3)
    with torch.no_grad():
        bias[3] = float("-inf")
    inputs = (first, second, weight, bias)
    fast, reference = pair_log_normalisers(*inputs), pair_log_normalisers_clear(*inputs)
    torch.testing.assert_close(fast, reference)
    uneven = torch.linspace(-1, 2, fast.numel()).view_as(fast)
    for fast_gradient, reference_gradient in zip(
        torch.autograd.grad((fast * uneven).sum(), inputs),
        torch.autograd.grad((reference * uneven).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(fast_gradient, reference_gradient, atol=1e-4, rtol=1e-4)


def test_pair_normaliser_of_opposed_vectors_is_finite():
    """x prefers token 0 by 200 nats and y token 1 by 200: the true value is log 2 + 0."""
    weight = torch.tensor([[1.0], [-1.0]])
    first, second = torch.tensor([[[100.0]]]), torch.tensor([[[-100.0]]])
    log_normaliser = pair_log_normalisers(first, second, weight, torch.zeros(2))
    # Too high rather than too low: probabilities then sum to less than one, never to more.
    assert (
        log_normaliser.isfinite().all() and log_normaliser.item() >= torch.tensor(2.0).log().item()
    )


def test_pairs_within_distance_are_in_row_order():
    first, second = pairs_within(2, 3, torch.device("cpu"))
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
    assert len(pairs_within(None, 3, torch.device("cpu"))[0]) == 9
