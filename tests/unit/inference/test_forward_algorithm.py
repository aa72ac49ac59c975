"""Forward algorithm: scaled version against the reference, and that against enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lmlab.inference.forward_algorithm import forward_filter, forward_filter_clear


def case(blocks: int, inside: int, *, rows: int = 5, time: int = 6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(blocks)
    states = blocks * inside

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    return (
        torch.log_softmax(draw(rows, states), -1),
        draw(rows, time, inside) * 3,
        torch.randint(0, blocks, (rows, time), generator=generator),
        torch.log_softmax(draw(states, states), -1),
    )


@pytest.mark.parametrize(("blocks", "inside"), [(1, 4), (2, 3), (4, 1)])
def test_reference_filter_sums_over_state_sequences(blocks: int, inside: int):
    log_first, log_emitted, block, log_transition = case(blocks, inside, rows=2, time=3)
    predicted = forward_filter_clear(log_first, log_emitted, block, log_transition).exp()
    states = blocks * inside
    for row in range(2):
        weights = torch.zeros(states).double()
        for z in itertools.product(range(states), repeat=4):
            if any(z[t] // inside != block[row, t] for t in range(3)):
                continue  # a token is emitted only by states of its own block
            score = float(log_first[row, z[0]])
            score += sum(float(log_emitted[row, t, z[t] % inside]) for t in range(3))
            score += sum(float(log_transition[z[t], z[t + 1]]) for t in range(3))
            weights[z[3]] += math.exp(score)
        torch.testing.assert_close(predicted[row, 2], weights / weights.sum(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("blocks", "inside"), [(1, 6), (3, 2), (3, 5)])
def test_scaled_filter_equals_reference_with_gradients(blocks: int, inside: int):
    inputs = case(blocks, inside)
    weights = torch.randn(5, 6, blocks * inside, generator=torch.Generator().manual_seed(9))
    outcomes = []
    for function in (forward_filter, forward_filter_clear):
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        values = function(*leaves)
        (values * weights.double()).sum().backward()
        outcomes.append((values.detach(), *(x.grad for x in leaves if x.is_floating_point())))
    for fast, reference in zip(*outcomes, strict=True):
        torch.testing.assert_close(fast, reference, atol=1e-10, rtol=1e-10)


def test_single_precision_is_accurate_over_long_text():
    inputs = case(1, 32, rows=2, time=400, dtype=torch.float32)
    fast, reference = forward_filter(*inputs), forward_filter_clear(*inputs)
    torch.testing.assert_close(fast, reference, atol=1e-4, rtol=0)


def test_underflow_falls_back_to_the_reference_filter():
    """The only likely state is the one that the token all but forbids: e^-200 is 0 in float32."""
    log_first = torch.tensor([[0.0, -200.0]])
    log_emitted = torch.tensor([[[-200.0, 0.0]]])
    log_transition = torch.log_softmax(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), -1)
    block = torch.zeros(1, 1, dtype=torch.long)
    predicted = forward_filter(log_first, log_emitted, block, log_transition)
    # Both states are equally likely after it, so the prediction is the mean of the two rows.
    torch.testing.assert_close(predicted.exp(), torch.tensor([[[0.5, 0.5]]]))
