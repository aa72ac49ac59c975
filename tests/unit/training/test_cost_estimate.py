from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lmlab.training.config import TrainingConfig
from lmlab.training.cost_estimate import CostEstimate, activation_bytes, estimate_cost, format_bytes
from lmlab.training.loop import FitJob


def test_cost_estimate_preserves_weights_and_rng_state(
    make_job: Callable[..., FitJob], bigram: Any
) -> None:
    system = bigram(dropout=0.5)
    before = {name: value.clone() for name, value in system.state_dict().items()}
    random = torch.random.get_rng_state()
    source = make_job().data.train
    estimate = estimate_cost(
        system, source, TrainingConfig(epochs=3, grad_accumulation=2), tokens=500
    )
    assert all(torch.equal(before[name], value) for name, value in system.state_dict().items())
    assert all(parameter.grad is None for parameter in system.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert estimate.parameters == 8 * 8 + 3
    # Weights, gradients and the two moments of AdamW, 4 bytes each, and something for activations.
    assert 4 * 4 * (8 * 8 + 3) < estimate.memory < 20_000
    assert estimate.seconds == pytest.approx(3 * 500 / estimate.tokens_per_second)


def test_estimated_time_for_step_and_minute_budgets(
    make_job: Callable[..., FitJob], bigram: Any
) -> None:
    source = make_job().data.train
    by_steps = estimate_cost(
        bigram(), source, TrainingConfig(epochs=None, steps=6, grad_accumulation=2), tokens=500
    )
    # Four batches per epoch: twelve of them are three epochs.
    assert by_steps.seconds == pytest.approx(3 * 500 / by_steps.tokens_per_second)
    by_clock = estimate_cost(bigram(), source, TrainingConfig(epochs=None, minutes=1), tokens=500)
    assert by_clock.seconds is None


def test_activation_bytes_count_shared_memory_once() -> None:
    x = torch.ones(1000, requires_grad=True)
    with activation_bytes() as saved:
        y = x.exp()  # keeps y
        _ = (y * y).sum()  # keeps y twice over
    assert sum(saved.values()) == 4000


def test_cost_estimate_sentence() -> None:
    expected = CostEstimate(
        parameters=2_757_351, memory=146_000_000, tokens_per_second=4983.4, seconds=64.2
    )
    assert expected.sentence() == (
        "2,757,351 parameters, about 146 MB of memory, about 64 s at 4,983 tokens/s"
    )
    assert [format_bytes(size) for size in (12, 3400, 2.5e9)] == ["12 bytes", "3 kB", "2.5 GB"]
