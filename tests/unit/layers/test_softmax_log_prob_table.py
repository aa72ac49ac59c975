"""Log-probability table of states: fast version against the reference."""

from __future__ import annotations

import pytest
import torch

from lmlab.layers.softmax_log_prob import log_table, table_log_prob, table_log_prob_clear


def some_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(9, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    points = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(9, dtype=torch.float64, generator=generator)
    bias[0] = -torch.inf
    return outputs, points, bias.requires_grad_(), torch.tensor([4, 8, 4, 1, 4])


def test_log_table_columns_sum_to_one():
    outputs, points, bias, _ = some_inputs()
    table = log_table(outputs, points, bias)
    assert table.exp().sum(0).tolist() == pytest.approx([1.0] * 3)
    assert table[0].tolist() == [-torch.inf] * 3


def test_table_log_prob_equals_reference_with_gradients():
    outputs, points, bias, targets = some_inputs()
    weights = torch.arange(15.0, dtype=torch.float64).view(5, 3)
    values, grads = [], []
    for function in (table_log_prob, table_log_prob_clear):
        value = function(outputs, points, bias, targets)
        values.append(value)
        grads.append(torch.autograd.grad((value * weights).sum(), (outputs, points, bias)))
    torch.testing.assert_close(*values)
    for fast, reference in zip(*grads, strict=True):
        torch.testing.assert_close(fast, reference)


def test_large_scores_do_not_overflow():
    outputs, points, bias, targets = some_inputs()
    fast = table_log_prob(300 * outputs, points, bias, targets)
    torch.testing.assert_close(fast, table_log_prob_clear(300 * outputs, points, bias, targets))
