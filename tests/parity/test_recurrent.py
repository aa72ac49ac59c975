"""Recurrent systems against torch.nn with the same weights, and against steps worked by hand."""

from __future__ import annotations

from math import exp, tanh

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import (
    CoupledLSTMCell,
    InputResetGRUCell,
    LinearCell,
    PeepholeLSTMCell,
)
from lmlab.layers.softmax_log_prob import linear_log_prob, linear_log_prob_clear

VOCABULARY = Vocabulary(size=11)


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def batch_of(*sequences: list[int]) -> Batch:
    return Batch.collate(sequences, pad=0)


@pytest.mark.parametrize(
    ("name", "reference_class"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)]
)
@pytest.mark.parametrize(("layers", "tied"), [(1, False), (2, True)])
def test_equals_torch_with_the_same_weights(name, reference_class, layers, tied):
    torch.manual_seed(0)
    module = system_module(name)
    config = module.Config(width=8, layers=layers, dropout=0.0, tied=tied)
    system = module.build(config, VOCABULARY).eval()
    reference = reference_class(8, 8, num_layers=layers, batch_first=True)
    for layer, block in enumerate(system.backbone.stack.blocks):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(reference, f"{kind}_l{layer}").data.copy_(
                getattr(block.mixer.fused, f"{kind}_l0")
            )
    batch = batch_of([2, 5, 6, 7, 3], [2, 9, 10, 3])

    embedded = F.embedding(batch.tokens[:, :-1], system.backbone.embedding.weight)
    outputs, _ = reference(embedded)
    logits = outputs @ system.emission.weight.T + system.emission.bias
    logits[..., [0, 2, 4]] = float("-inf")  # <pad>, <s> and <mask> are never predicted
    expected = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)
    got = system.log_prob(batch)
    assert got.kind == "exact"
    torch.testing.assert_close(got.per_token[0], expected[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(got.per_token[1, :3], expected[1, :3], atol=1e-6, rtol=0)
    assert got.per_token[1, 3] == 0  # padding


def fill(parameter: torch.Tensor, values: list[float]) -> None:
    parameter.data.copy_(torch.tensor(values).reshape(parameter.shape))


def test_peephole_lstm_step_by_hand():
    cell = PeepholeLSTMCell(1, 1)
    fill(cell.from_input.weight, [0.5, -0.5, 1.0, 2.0])  # i, f, o, g
    fill(cell.from_input.bias, [0.1, 0.2, 0.3, 0.0])
    fill(cell.from_hidden, [1.0, 2.0, -1.0, 0.5])
    fill(cell.from_cell, [1.0, -1.0, 0.5])
    _, (hidden, memory) = cell.run(
        torch.tensor([[[1.0]]]), (torch.tensor([[0.5]]), torch.tensor([[-1.0]]))
    )
    # x = 1, h = 0.5, c = -1:
    admit = sigmoid(0.5 + 0.1 + 1.0 * 0.5 + 1.0 * -1.0)  # σ(0.1)
    keep = sigmoid(-0.5 + 0.2 + 2.0 * 0.5 + -1.0 * -1.0)  # σ(1.7)
    show = sigmoid(1.0 + 0.3 - 1.0 * 0.5 + 0.5 * -1.0)  # σ(0.3)
    candidate = tanh(2.0 + 0.5 * 0.5)  # the candidate does not see c
    expected = keep * -1.0 + admit * candidate
    assert memory.item() == pytest.approx(expected, abs=1e-6)
    assert hidden.item() == pytest.approx(show * tanh(expected), abs=1e-6)


def test_coupled_lstm_step_by_hand():
    cell = CoupledLSTMCell(1, 1)
    fill(cell.from_input.weight, [0.5, 1.0, 2.0])  # i, o, g
    fill(cell.from_input.bias, [0.1, 0.3, 0.0])
    fill(cell.from_hidden, [1.0, -1.0, 0.5])
    _, (hidden, memory) = cell.run(
        torch.tensor([[[1.0]]]), (torch.tensor([[0.5]]), torch.tensor([[-1.0]]))
    )
    admit = sigmoid(0.5 + 0.1 + 0.5)  # σ(1.1)
    show = sigmoid(1.0 + 0.3 - 0.5)  # σ(0.8)
    expected = (1 - admit) * -1.0 + admit * tanh(2.0 + 0.25)
    assert memory.item() == pytest.approx(expected, abs=1e-6)
    assert hidden.item() == pytest.approx(show * tanh(expected), abs=1e-6)


def test_input_reset_gru_step_by_hand():
    cell = InputResetGRUCell(1, 1)
    fill(cell.gates_from_input.weight, [0.5, -1.0])  # z, r
    fill(cell.from_hidden, [1.0, 2.0, 0.5])  # z, r, candidate
    fill(cell.candidate_from_input, [3.0])
    _, (hidden,) = cell.run(torch.tensor([[[2.0]]]), (torch.tensor([[0.5]]),))
    update = sigmoid(0.5 * 2.0 + 1.0 * 0.5)  # σ(1.5)
    reset = sigmoid(-1.0 * 2.0 + 2.0 * 0.5)  # σ(-1)
    candidate = tanh(0.5 * 0.5 + 3.0 * (reset * 2.0))  # the reset gate multiplies x
    assert hidden.item() == pytest.approx((1 - update) * 0.5 + update * candidate, abs=1e-6)


def test_linear_rnn_unrolls_to_powers():
    # h_t = U^t h_0 + Σ U^(t-i) W x_i; with x = 0 and b = 0 only U^t h_0 is left.
    torch.manual_seed(0)
    cell = LinearCell(3, 3, radius=0.9)
    nn.init.zeros_(cell.from_input.bias)
    start = torch.randn(1, 3)
    outputs, _ = cell.run(torch.zeros(1, 5, 3), (start,))
    power = torch.linalg.matrix_power(cell.from_hidden.detach(), 5)
    torch.testing.assert_close(outputs[0, 4], power @ start[0], atol=1e-6, rtol=1e-5)
    radius = torch.linalg.eigvals(cell.from_hidden).abs().max().item()
    assert radius == pytest.approx(0.9, abs=1e-5)


def test_spherical_softmax_depends_on_cosines_only():
    torch.manual_seed(0)
    module = system_module("lstm-sphere")
    system = module.build(module.Config(width=8, dropout=0.0, scale=4.0), VOCABULARY).eval()
    vectors = system.backbone.embedding(torch.arange(11))
    torch.testing.assert_close(vectors.norm(dim=1), torch.full((11,), 8**0.5))
    hidden = torch.randn(3, 8)
    log_probs = system.emission.log_probs(hidden)
    cosines = F.cosine_similarity(hidden[:, None], system.emission.weight[None], dim=-1)
    predictable = [1, 3, 5, 6, 7, 8, 9, 10]
    expected = (4.0 * cosines[:, predictable]).log_softmax(-1)
    torch.testing.assert_close(log_probs[:, predictable], expected)
    # Longer vectors change nothing.
    with torch.no_grad():
        system.emission.weight.mul_(7.0)
        longer = system.emission.log_probs(3.0 * hidden)
    torch.testing.assert_close(longer, log_probs)


def test_spherical_dropout_keeps_the_mean_logits():
    """Averaged over many masks, the scaled direction is the one without dropout."""
    torch.manual_seed(0)
    module = system_module("lstm-sphere")
    system = module.build(module.Config(width=64, dropout=0.5), VOCABULARY).train()
    hidden = torch.randn(1, 64).expand(20_000, -1)
    scaled, _, _ = system.emission.linear(hidden)
    expected = 8.0 * hidden[0] / hidden[0].norm()  # β = √64
    # Each entry's mean over 20,000 masks is within 5 standard errors, |x| / √20,000.
    error = (scaled.mean(0) - expected).abs()
    assert (error <= 5 * expected.abs() / 20_000**0.5 + 1e-6).all()


def test_fast_log_prob_and_gradients_equal_reference():
    torch.manual_seed(0)
    targets = torch.randint(0, 50, (17,))
    results = []
    for function in (linear_log_prob_clear, linear_log_prob):
        torch.manual_seed(1)
        parts = [torch.randn(shape, requires_grad=True) for shape in ((17, 6), (50, 6), (50,))]
        values = function(*parts, targets)
        (values * torch.linspace(-1, 2, 17)).sum().backward()
        results.append([values, *(part.grad for part in parts)])
    for clear, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, clear, atol=1e-5, rtol=1e-5)


def test_blockwise_log_prob_equals_reference():
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(2500, 3), torch.randn(7, 3), torch.randn(7)
    targets = torch.randint(0, 7, (2500,))
    with torch.no_grad():
        fast = linear_log_prob(hidden, weight, bias, targets)
        nothing = linear_log_prob(hidden[:0], weight, bias, targets[:0])
    torch.testing.assert_close(fast, linear_log_prob_clear(hidden, weight, bias, targets))
    assert nothing.shape == (0,)


def test_fast_log_prob_gives_the_same_gradients_twice():
    parts = [torch.randn(shape, requires_grad=True) for shape in ((3, 2), (5, 2), (5,))]
    values = linear_log_prob(*parts, torch.tensor([0, 1, 2])).sum()
    first = torch.autograd.grad(values, parts, retain_graph=True)
    for once, again in zip(first, torch.autograd.grad(values, parts), strict=True):
        torch.testing.assert_close(once, again, atol=0, rtol=0)
