"""Captured gates over time against the formulas in numpy from raw weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.attention_mask import CausalMask
from lmlab.core.view import View
from lmlab.zoo._recurrent import build_cell

WIDTH = 5
TOKENS = torch.tensor([[1, 2, 3, 4], [4, 4, 0, 1]])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(w, x, state):
    summed = (
        w["weight_ih_l0"] @ x + w["bias_ih_l0"] + w["weight_hh_l0"] @ state[0] + w["bias_hh_l0"]
    )
    i, f, g, o = summed.reshape(4, WIDTH)
    cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    gates = {"input gate": sigmoid(i), "forget gate": sigmoid(f), "output gate": sigmoid(o)}
    return gates, (sigmoid(o) * np.tanh(cell), cell)


def gru(w, x, state):
    from_input = (w["weight_ih_l0"] @ x + w["bias_ih_l0"]).reshape(3, WIDTH)
    from_hidden = (w["weight_hh_l0"] @ state[0] + w["bias_hh_l0"]).reshape(3, WIDTH)
    r, z = sigmoid(from_input[0] + from_hidden[0]), sigmoid(from_input[1] + from_hidden[1])
    n = np.tanh(from_input[2] + r * from_hidden[2])
    return {"reset gate": r, "update gate": z}, ((1 - z) * n + z * state[0],)


def peephole(w, x, state):
    from_input = w["weight"] @ x + w["bias"] + state[0] @ w["from_hidden"]
    from_cell = state[1] @ w["from_cell"]
    i, f, o = sigmoid(from_input[: 3 * WIDTH] + from_cell).reshape(3, WIDTH)
    cell = f * state[1] + i * np.tanh(from_input[3 * WIDTH :])
    gates = {"input gate": i, "forget gate": f, "output gate": o}
    return gates, (o * np.tanh(cell), cell)


def coupled(w, x, state):
    summed = (w["weight"] @ x + w["bias"] + state[0] @ w["from_hidden"]).reshape(3, WIDTH)
    i, o = sigmoid(summed[0]), sigmoid(summed[1])
    cell = (1 - i) * state[1] + i * np.tanh(summed[2])
    return {"input gate": i, "output gate": o}, (o * np.tanh(cell), cell)


def gru_notes(w, x, state):
    from_hidden = state[0] @ w["from_hidden"]
    gates = sigmoid(w["weight"] @ x + from_hidden[: 2 * WIDTH])
    z, r = gates[:WIDTH], gates[WIDTH:]
    candidate = np.tanh(from_hidden[2 * WIDTH :] + (r * x) @ w["candidate_from_input"])
    return {"update gate": z, "reset gate": r}, ((1 - z) * state[0] + z * candidate,)


def gru_minimal(w, x, state):
    f = sigmoid(x @ w["gate_input"] + state[0] @ w["gate_hidden"] + w["gate_bias"])
    g = np.tanh(
        x @ w["candidate_input"] + (state[0] * f) @ w["candidate_hidden"] + w["candidate_bias"]
    )
    return {"update gate": f}, ((1 - f) * state[0] + f * g,)


CELLS = {
    "lstm": lstm,
    "gru": gru,
    "lstm-peephole": peephole,
    "lstm-coupled": coupled,
    "gru-notes": gru_notes,
    "gru-minimal": gru_minimal,
}


def backbone_of(name: str, layers: int = 1) -> Recurrent:
    torch.manual_seed(0)
    cells = [build_cell(name, WIDTH, WIDTH) for _ in range(layers)]
    backbone = Recurrent(nn.Embedding(5, WIDTH), cells).double()
    for parameter in backbone.parameters():
        parameter.data.normal_()
    return backbone


def view_of(tokens: torch.Tensor) -> View:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())


@pytest.mark.parametrize("name", CELLS)
def test_gates_and_outputs_equal_the_formula(name):
    backbone = backbone_of(name)
    captures = backbone.capture_internals(view_of(TOKENS))
    outputs = backbone(view_of(TOKENS)).values.detach().numpy()
    cell = backbone.stack.blocks[0].mixer
    weights = {n.rpartition(".")[2]: p.detach().numpy() for n, p in cell.named_parameters()}
    for row in range(2):
        state = tuple(np.zeros(WIDTH) for _ in cell.names)
        for position, token in enumerate(TOKENS[row]):
            vector = backbone.embedding.weight[token].detach().numpy()
            gates, state = CELLS[name](weights, vector, state)
            np.testing.assert_allclose(outputs[row, position], state[0], atol=1e-12)
            titles = {f"layer 1 {gate}" for gate in gates}
            assert captures.keys() == {*titles, "layer 1 hidden"}
            for gate, expected in gates.items():
                title = f"layer 1 {gate}"
                assert captures[title].axes == ("batch", "time", "unit")
                got = captures[title].values[row, position].detach().numpy()
                np.testing.assert_allclose(got, expected, atol=1e-12)


def test_gates_of_stacked_layers_are_captured_per_layer():
    backbone = backbone_of("gru", layers=2)
    captures = backbone.capture_internals(view_of(TOKENS))
    assert list(captures)[:2] == ["layer 1 reset gate", "layer 1 update gate"]
    first, second = (block.mixer for block in backbone.stack.blocks)
    zeros = (torch.zeros(2, WIDTH, dtype=torch.double),)
    below, _ = first.run(backbone.embedding(TOKENS), zeros)
    expected = second.gates(below, zeros)["update gate"]
    torch.testing.assert_close(captures["layer 2 update gate"].values, expected)


def test_cell_without_gates_captures_its_hidden_states():
    backbone = backbone_of("rnn")
    [(name, capture)] = backbone.capture_internals(view_of(TOKENS)).items()
    assert name == "layer 1 hidden"
    torch.testing.assert_close(capture.values, backbone(view_of(TOKENS)).values)


def test_gates_continue_from_a_given_state():
    backbone = backbone_of("lstm")
    whole = backbone.capture_internals(view_of(TOKENS))["layer 1 forget gate"].values
    state = backbone(view_of(TOKENS[:, :2])).state
    rest = backbone.capture_internals(view_of(TOKENS[:, 2:]), state)["layer 1 forget gate"].values
    torch.testing.assert_close(rest, whole[:, 2:])
