from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lmlab.training.config import TrainingConfig
from lmlab.training.optimizers import build_optimizer

GRADIENT = 0.5
START = 2.0


def one_step(**settings: Any) -> tuple[float, float]:
    """A matrix entry and a vector entry after one step from START with a gradient of GRADIENT."""
    module = nn.Linear(1, 1)
    for parameter in module.parameters():
        nn.init.constant_(parameter, START)
        parameter.grad = torch.full_like(parameter, GRADIENT)
    build_optimizer(module, TrainingConfig(learning_rate=0.1, **settings)).step()
    return module.weight.item(), module.bias.item()


def test_sgd_follows_the_gradient() -> None:
    assert one_step(optimizer="sgd") == pytest.approx((START - 0.1 * GRADIENT,) * 2)


def test_first_adam_step_has_size_of_the_learning_rate() -> None:
    # Bias-corrected moments of one gradient g are g and g², so the step is lr · g / (|g| + eps).
    assert one_step(optimizer="adam", eps=1e-12) == pytest.approx((START - 0.1,) * 2)
    with_eps = START - 0.1 * GRADIENT / (GRADIENT + 0.5)
    assert one_step(optimizer="adam", eps=0.5) == pytest.approx((with_eps,) * 2)


def test_rmsprop_step_by_hand() -> None:
    # The mean square starts at 0 and keeps 0.99, so it is 0.01 g² after one step.
    expected = START - 0.1 * GRADIENT / (math.sqrt(0.01) * GRADIENT + 0.01)
    assert one_step(optimizer="rmsprop", eps=0.01) == pytest.approx((expected,) * 2)


def test_adamw_weight_decay_is_decoupled_and_skips_vectors() -> None:
    matrix, vector = one_step(optimizer="adamw", weight_decay=0.3, eps=1e-12)
    assert matrix == pytest.approx(START * (1 - 0.1 * 0.3) - 0.1)
    assert vector == pytest.approx(START - 0.1)


def test_momentum_is_used_by_sgd() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, START)
    optimizer = build_optimizer(
        module, TrainingConfig(optimizer="sgd", learning_rate=0.1, momentum=0.9)
    )
    for _ in range(2):
        module.weight.grad = torch.full_like(module.weight, GRADIENT)
        optimizer.step()
    # Velocities g and 1.9 g.
    assert module.weight.item() == pytest.approx(START - 0.1 * GRADIENT * 2.9)


def test_frozen_parameters_are_excluded() -> None:
    module = nn.Linear(2, 2)
    module.weight.requires_grad_(False)
    optimizer = build_optimizer(module, TrainingConfig())
    assert [p for group in optimizer.param_groups for p in group["params"]] == [module.bias]


def test_adafactor_step_is_relative_to_parameter_scale() -> None:
    # The first step is lr · RMS(parameter) · g / RMS(g), here 0.1 · START (Shazeer and Stern).
    assert one_step(optimizer="adafactor") == pytest.approx((START * (1 - 0.1),) * 2)
