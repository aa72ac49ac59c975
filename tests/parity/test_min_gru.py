"""minGRU: the recurrence by hand, gradients of the scan, PyPI's minGRU-pytorch on equal weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.min_gru import CHUNK, MinGRUCell, linear_scan


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cell_of(candidate: str, width: int = 4) -> MinGRUCell:
    torch.manual_seed(0)
    cell = MinGRUCell(3, width, candidate=candidate).double()  # type: ignore[arg-type]
    torch.nn.init.normal_(cell.candidate_and_gate.weight)
    return cell


def test_two_steps_by_hand() -> None:
    """W = 2, W_z = -1, inputs 1 and 3, from h = 0.5."""
    cell = MinGRUCell(1, 1).double()
    with torch.no_grad():
        cell.candidate_and_gate.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    outputs, (last,) = cell.run(
        torch.tensor([[[1.0], [3.0]]]).double(), (torch.tensor([[0.5]]).double(),)
    )
    first = (1 - sigmoid(-1.0)) * 0.5 + sigmoid(-1.0) * 2.0
    second = (1 - sigmoid(-3.0)) * first + sigmoid(-3.0) * 6.0
    assert outputs.flatten().tolist() == pytest.approx([first, second], abs=1e-12)
    assert last.item() == pytest.approx(second, abs=1e-12)


@pytest.mark.parametrize("candidate", ["linear", "positive"])
@pytest.mark.parametrize("time", [1, CHUNK - 1, CHUNK, 2 * CHUNK, 3 * CHUNK + 5])
def test_scan_equals_the_recurrence_in_numpy(candidate: str, time: int) -> None:
    cell, inputs = cell_of(candidate), torch.randn(2, time, 3).double()
    start = torch.rand(2, 4).double()
    outputs, (last,) = cell.run(inputs, (start,))
    weight, hidden = cell.candidate_and_gate.weight.detach().numpy(), start.numpy()
    for t in range(time):
        both = inputs[:, t].numpy() @ weight.T
        proposed, gate = both[:, :4], 1 / (1 + np.exp(-both[:, 4:]))
        if candidate == "positive":
            below = 1 / (1 + np.exp(-proposed))
            proposed = np.where(proposed >= 0, proposed + 0.5, below)
        hidden = (1 - gate) * hidden + gate * proposed
        np.testing.assert_allclose(outputs[:, t].detach().numpy(), hidden, atol=1e-12)
    np.testing.assert_allclose(last.detach().numpy(), hidden, atol=1e-12)


@pytest.mark.parametrize("time", [1, 2, CHUNK + 3])
def test_gradient_of_the_scan_equals_finite_differences(time: int) -> None:
    torch.manual_seed(1)
    decay = torch.rand(2, time, 2).double().requires_grad_()
    inputs = torch.randn(2, time, 2).double().requires_grad_()
    start = torch.randn(2, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(linear_scan, (decay, inputs, start))


@pytest.mark.parametrize("sign", [-1, 0, 1], ids=["gates near 0", "both", "gates near 1"])
@pytest.mark.parametrize("scale", [12, 200])
def test_scan_and_its_gradient_are_stable_in_float32_over_a_long_text(
    scale: float, sign: int
) -> None:
    """10,000 steps, gates saturated to exactly 0 and 1, against a loop in double precision."""
    torch.manual_seed(2)
    logits, values = scale * torch.randn(1, 10_000, 4), torch.randn(1, 10_000, 4)
    logits = sign * logits.abs() if sign else logits
    start, weights = torch.randn(1, 4), torch.randn(1, 10_000, 4)
    results = []
    for dtype in (torch.float32, torch.float64):
        parts = [part.to(dtype).clone().requires_grad_() for part in (logits, values, start)]
        decay, inputs = (-parts[0]).sigmoid(), parts[0].sigmoid() * parts[1]
        if dtype == torch.float32:
            states = linear_scan(decay, inputs, parts[2])
        else:
            hidden, by_time = parts[2], []
            for a, b in zip(decay.unbind(1), inputs.unbind(1), strict=True):
                hidden = a * hidden + b
                by_time.append(hidden)
            states = torch.stack(by_time, 1)
        assert states.dtype == dtype
        results.append((states, *torch.autograd.grad((states * weights).sum(), parts)))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("from_state", [False, True])
def test_outputs_and_gradients_equal_min_gru_pytorch(from_state: bool) -> None:
    """Theirs has the positive candidate and scans in log-space; without a state it starts at 0."""
    theirs_module = pytest.importorskip(
        "minGRU_pytorch", reason="minGRU-pytorch is the oracle of the positive candidate"
    )
    torch.manual_seed(0)
    theirs = theirs_module.minGRU(6).double()
    cell = MinGRUCell(6, 6, candidate="positive").double()
    cell.load_state_dict({"candidate_and_gate.weight": theirs.to_hidden_and_gate.weight.detach()})
    inputs = torch.randn(3, 21, 6).double()
    start = torch.rand(3, 6).double() if from_state else torch.zeros(3, 6).double()
    expected = theirs(inputs, start[:, None] if from_state else None)
    outputs, (last,) = cell.run(inputs, (start,))
    torch.testing.assert_close(outputs, expected, atol=1e-10, rtol=0)
    weights = torch.randn_like(outputs)
    (outputs * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(
        cell.candidate_and_gate.weight.grad,
        theirs.to_hidden_and_gate.weight.grad,
        atol=1e-9,
        rtol=0,
    )
    stepped, _ = theirs(inputs[:, :1], last[:, None], return_next_prev_hidden=True)
    ours, _ = cell.run(inputs[:, :1], (last,))
    torch.testing.assert_close(ours, stepped, atol=1e-12, rtol=0)


@torch.no_grad()
def test_log_prob_by_hand() -> None:
    """One layer: embedding, recurrence from zero, softmax."""
    module = system_module("min-gru")
    torch.manual_seed(3)
    system = module.build(module.Config(width=4, dropout=0.0), Vocabulary(size=9)).double().eval()
    batch = Batch.collate([[2, 5, 7, 3]], pad=0)
    weight = system.backbone.stack.blocks[0].mixer.candidate_and_gate.weight
    hidden, expected = torch.zeros(4).double(), []
    for token, target in ((2, 5), (5, 7), (7, 3)):
        both = weight @ system.backbone.embedding.weight[token]
        update = torch.sigmoid(both[4:])
        hidden = (1 - update) * hidden + update * both[:4]
        expected.append(system.emission.log_probs(hidden[None])[0, target])
    torch.testing.assert_close(system.log_prob(batch).per_token[0], torch.stack(expected))
