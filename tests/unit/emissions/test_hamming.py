"""Soft Hamming scores: fast implementations against the reference ones."""

from __future__ import annotations

import pytest
import torch

from lmlab.emissions.hamming import (
    lowest_product,
    lowest_product_clear,
    sum_of_sigmoids,
    sum_of_sigmoids_clear,
)


@pytest.mark.parametrize(
    ("fast", "reference"),
    [(sum_of_sigmoids, sum_of_sigmoids_clear), (lowest_product, lowest_product_clear)],
)
def test_fast_version_equals_reference_with_gradients(fast, reference):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 3, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    tokens = torch.randn(7, 3, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    values, grads = [], []
    for function in (fast, reference):
        value = function(hidden, tokens)
        values.append(value)
        grads.append(torch.autograd.grad((value * weights).sum(), (hidden, tokens)))
    torch.testing.assert_close(*values)
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)
