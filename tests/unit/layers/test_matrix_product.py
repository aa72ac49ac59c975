"""Products by oneDNN against torch's own, with gradients; the functions that are built on them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lmlab.layers import matrix_product
from lmlab.layers.input_embedding import scale_to_radius, unit_vectors
from lmlab.layers.softmax_log_prob import (
    linear_log_prob,
    linear_log_prob_clear,
    log_normaliser,
    mixture_log_prob,
    mixture_log_prob_clear,
    table_log_prob,
    table_log_prob_clear,
)


@pytest.fixture(autouse=True)
def every_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size by oneDNN, where it is available."""
    monkeypatch.setattr(matrix_product, "WORTH_ONEDNN", 0)


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, requires_grad=True)


def assert_equal_with_gradients(fast, clear, *parts: torch.Tensor) -> None:
    """Same values and same gradients of a weighted sum."""
    results = []
    for function in (fast, clear):
        values = function(*parts)
        weights = torch.linspace(-1, 2, values.numel()).view_as(values)
        results.append([values, *torch.autograd.grad((values * weights).sum(), parts)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)


def test_linear_equals_torch_for_any_strides() -> None:
    assert_equal_with_gradients(matrix_product.linear, F.linear, some(3, 7, 5), some(11, 5, seed=1))
    parts = some(3, 7, 5), some(11, 5, seed=1), some(11, seed=2)
    assert_equal_with_gradients(matrix_product.linear, F.linear, *parts)
    strided, weight = some(5, 13).t(), some(5, 6, seed=1).t()
    torch.testing.assert_close(matrix_product.product(strided, weight), strided @ weight.t())


def test_module_has_the_weights_of_torchs_linear() -> None:
    ours, torchs = matrix_product.Linear(5, 3), torch.nn.Linear(5, 3)
    ours.load_state_dict(torchs.state_dict())
    inputs = some(4, 5)
    torch.testing.assert_close(ours(inputs), torchs(inputs))


def test_other_types_and_autocast_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    single = some(4, 5)
    assert not matrix_product.uses_onednn(single.double(), single.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not matrix_product.uses_onednn(single, single)
        assert matrix_product.linear(single, single).dtype == torch.bfloat16
    monkeypatch.setattr(matrix_product, "_AVAILABLE", False)
    assert not matrix_product.uses_onednn(single, single)
    torch.testing.assert_close(matrix_product.linear(single, single), single @ single.t())


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmaxes_equal_the_clear_ones(scale: float) -> None:
    hidden, weight, bias = some(17, 6), some(50, 6, seed=1), some(50, seed=2)
    targets = torch.arange(17) * 2
    assert_equal_with_gradients(
        lambda h, w, b: linear_log_prob(scale * h, w, b, targets),
        lambda h, w, b: linear_log_prob_clear(scale * h, w, b, targets),
        *(hidden, weight, bias),
    )
    assert_equal_with_gradients(
        lambda h, w, b: log_normaliser(scale * h, w, b),
        lambda h, w, b: torch.logsumexp(F.linear(scale * h, w, b), -1),
        *(hidden, weight, bias),
    )
    assert_equal_with_gradients(
        lambda w, h, b: table_log_prob(w, scale * h, b, targets),
        lambda w, h, b: table_log_prob_clear(w, scale * h, b, targets),
        *(weight, hidden, bias),
    )


def test_mixture_equals_the_clear_one_where_probabilities_underflow() -> None:
    choices, log_probs = some(9, 4), some(9, 4, seed=1)
    assert_equal_with_gradients(mixture_log_prob, mixture_log_prob_clear, choices, log_probs)
    steep = torch.tensor([[0.0, 300.0]]), torch.tensor([[-1.0, -700.0]])
    # 1 of the first against e^300: log p = -1 - 300, as e^-400 of the second is far below it.
    assert mixture_log_prob(*steep).item() == pytest.approx(-301.0)


def test_unit_vectors_equal_the_clear_ones_and_zero_stays_zero() -> None:
    assert_equal_with_gradients(unit_vectors, scale_to_radius, some(6, 4))
    assert unit_vectors(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
