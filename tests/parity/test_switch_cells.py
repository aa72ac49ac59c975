"""The cells with switches against their formulas in numpy, from raw weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.switches import parse_switches
from lmlab.layers.switch_cells import MGRU_SWITCHES, MINIMAL_GRU_SWITCHES, MGRUCell, MinimalGRUCell
from lmlab.zoo._recurrent import build_cell

WIDTH, INPUT, ROWS, TIME = 6, 4, 3, 7

PARAMETERS = {0: "gate_input", 1: "gate_hidden", 2: "gate_bias"}
PARAMETERS |= {3: "candidate_input", 4: "candidate_hidden", 5: "candidate_bias"}
"""What each of the first switches of the minimal GRU owns."""


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def weights_of(cell):
    """Every parameter as numpy; parameters that the cell lacks are zero."""
    values = {name: p.detach().numpy() for name, p in cell.named_parameters()}
    return lambda name: values.get(name, np.zeros(()))


def times(x, weight):
    return x @ weight if weight.ndim else np.zeros(())


def random_cell(kind, off=(), **words):
    torch.manual_seed(1)
    cell = kind(INPUT, WIDTH, off=off, **words).double()
    for parameter in cell.parameters():
        parameter.data.normal_()
    return cell


def data(seed=2):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, TIME, INPUT, generator=generator, dtype=torch.double)
    start = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.double)
    return inputs, start


def minimal_gru(cell, inputs, h, off):
    """MGU step by step, each of the eight terms times 1, or 0 where it is off."""
    w, on = weights_of(cell), [float(k not in off) for k in range(8)]
    outputs = []
    for x in inputs.transpose(1, 0, 2):
        f = on[0] * times(x, w("gate_input")) + on[1] * times(h, w("gate_hidden"))
        f = sigmoid(f + on[2] * w("gate_bias"))
        g = on[3] * times(x, w("candidate_input")) + on[4] * times(h * f, w("candidate_hidden"))
        g = np.tanh(g + on[5] * w("candidate_bias"))
        h = on[6] * (1 - f) * h + on[7] * f * g
        outputs.append(h)
    return np.stack(outputs, 1)


MINIMAL_SETS = [(), *[(k,) for k in range(8)], (0, 2, 4, 5), (0, 4, 5), (2, 3, 4, 5), (0, 1, 2)]


@pytest.mark.parametrize("off", MINIMAL_SETS, ids=str)
def test_minimal_gru_equals_formula_with_terms_switched_off(off):
    cell = random_cell(MinimalGRUCell, off)
    inputs, start = data()
    outputs, (last,) = cell.run(inputs, cell.state_from_free((start,)))
    expected = minimal_gru(cell, inputs.numpy(), start.numpy(), off)
    np.testing.assert_allclose(outputs.detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(last.detach().numpy(), expected[:, -1], atol=1e-12)


def test_minimal_gru_step_by_hand():
    """Width 1, x = 1, h = 0.5; U_f = 1, V_f = 2, b_f = -1, U_h = 0.5, V_h = 4, b_h = 0.25."""
    cell = MinimalGRUCell(1, 1)
    for name, value in zip(PARAMETERS.values(), (1.0, 2.0, -1.0, 0.5, 4.0, 0.25), strict=True):
        getattr(cell, name).data.fill_(value)
    outputs, _ = cell.run(torch.ones(1, 1, 1), (torch.full((1, 1), 0.5),))
    f = 1 / (1 + np.exp(-(1 * 1 + 0.5 * 2 - 1)))  # σ(1) = 0.731059
    g = np.tanh(0.5 + 0.5 * f * 4 + 0.25)  # tanh(2.212117) = 0.976307
    assert outputs.item() == pytest.approx((1 - f) * 0.5 + f * g, abs=1e-6)


@pytest.mark.parametrize("switch", range(8))
def test_switch_removes_only_its_own_parameters(switch):
    intact = {name: p.shape for name, p in MinimalGRUCell(INPUT, WIDTH).named_parameters()}
    left = {n: p.shape for n, p in MinimalGRUCell(INPUT, WIDTH, off=(switch,)).named_parameters()}
    if switch == 6:  # the share that is kept has no parameters
        gone = set()
    elif switch == 7:  # without the candidate its parameters are unused
        gone = {"candidate_input", "candidate_hidden", "candidate_bias"}
    else:
        gone = {PARAMETERS[switch]}
    assert left == {name: shape for name, shape in intact.items() if name not in gone}


def mgru(cell, inputs, h, off):
    """The mGRU step by step, by the table of its switches."""
    w, on = weights_of(cell), [k not in off for k in range(12)]
    outputs, states, gates, earlier = [], [], [], [h]
    for x in inputs.transpose(1, 0, 2):
        seen = h
        if not on[6] and on[7]:
            seen = h - 0.5 if on[9] else np.arctanh(np.clip(2 * (h - 0.5), -0.9999, 0.9999))
        f = sigmoid(times(seen, w("gate_hidden")) + np.zeros_like(h))
        total = times(x, w("candidate_input"))
        g = np.tanh(total) if on[4] else sigmoid(total)
        j = h
        if not on[10]:
            j = attend_by_distance(h, earlier, w("distance"))
        elif not on[11]:
            j = attend_by_heads(h, earlier, w("affinity"), cell.attention_heads)
        h = on[2] * (1 - f) * j + on[3] * f * g + (not on[5]) * f * j
        earlier.append(h)
        gates.append(f)
        states.append(h)
        outputs.append(h - 0.5 if not on[6] and on[8] else h)
    return np.stack(outputs, 1), np.stack(states, 1), np.stack(gates, 1)


def attend_by_distance(h, earlier, distance):
    rows = []
    for row in range(len(h)):
        past = [state[row] for state in earlier]
        scores = [
            h[row] @ past[u] / WIDTH**0.5 + distance[len(past) - 1 - u] for u in range(len(past))
        ]
        weights = softmax(np.array(scores))
        rows.append(sum(weight * state for weight, state in zip(weights, past, strict=True)))
    return np.stack(rows)


def attend_by_heads(h, earlier, affinity, heads):
    share, result = WIDTH // heads, np.zeros_like(h)
    for row in range(len(h)):
        for head in range(heads):
            units = slice(head * share, (head + 1) * share)
            past = [state[row, units] for state in earlier]
            scores = [h[row] @ affinity[:, units] @ state / share**0.5 for state in past]
            weights = softmax(np.array(scores))
            result[row, units] = sum(w * state for w, state in zip(weights, past, strict=True))
    return result


MGRU_SETS = [(), (0,), (1,), (2,), (3,), (4,), (5,), (6,), (10,), (11,)]
MGRU_SETS += [(4, 6), (4, 6, 7), (4, 6, 8), (4, 6, 9), (4, 6, 10), (4, 6, 11), (2, 3, 5)]
MGRU_SETS += [(2, 5), (3, 5), (4, 6, 7, 8), (5, 10)]


@pytest.mark.parametrize("off", MGRU_SETS, ids=str)
def test_mgru_equals_formula_for_each_switch_set(off):
    cell = random_cell(MGRUCell, off)
    inputs, start = data()
    initial = start if 4 not in off else start.sigmoid()
    outputs, state = cell.run(inputs, cell.state_from_free((start,)))
    expected, states, gates = mgru(cell, inputs.numpy(), initial.numpy(), off)
    np.testing.assert_allclose(outputs.detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(state[0].detach().numpy(), states[:, -1], atol=1e-12)
    captured = cell.gates(inputs, cell.state_from_free((start,)))["update gate"]
    np.testing.assert_allclose(captured.detach().numpy(), gates, atol=1e-12)


def test_intact_mgru_equals_minimal_gru_without_0_2_4_5():
    short, long = random_cell(MGRUCell), random_cell(MinimalGRUCell, (0, 2, 4, 5))
    long.load_state_dict(short.state_dict())
    inputs, start = data()
    torch.testing.assert_close(short.run(inputs, (start,))[0], long.run(inputs, (start,))[0])


@pytest.mark.parametrize("off", [(4, 6), (4, 6, 10), (4, 6, 11)], ids=str)
def test_states_stay_between_zero_and_one(off):
    """h' is a mean of j and g, which lie in [0, 1] as the initial state does."""
    cell = random_cell(MGRUCell, off)
    inputs, start = data()
    states = [state[0] for state, _ in cell.steps(30 * inputs, cell.state_from_free((30 * start,)))]
    values = torch.stack([cell.state_from_free((30 * start,))[0], *states])
    assert 0 <= values.min() < 0.01 and 0.99 < values.max() <= 1


def test_mgru_switches_add_and_remove_parameters():
    def names(*off):
        return {name for name, _ in MGRUCell(INPUT, WIDTH, off=off).named_parameters()}

    assert names() == names(2) == names(4) == names(5) == names(6) == names(4, 6, 9)
    assert names() == {"gate_hidden", "candidate_input"}
    assert names(0) == {"candidate_input"}
    assert names(1) == names(3) == {"gate_hidden"}
    assert names(10) == names() | {"distance"}
    assert names(11) == names() | {"affinity"}


@pytest.mark.parametrize("off", [(), (10,), (11,)], ids=str)
@pytest.mark.parametrize("span", [3, 50])
def test_continuing_from_a_state_equals_one_pass(off, span):
    """The state carries what the attention needs, also where its span is shorter than the text."""
    cell = random_cell(MGRUCell, off, attention_span=span)
    inputs, start = data()
    whole, _ = cell.run(inputs, cell.state_from_free((start,)))
    first, state = cell.run(inputs[:, :4], cell.state_from_free((start,)))
    second, _ = cell.run(inputs[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-12, rtol=0)


def test_short_attention_span_drops_old_states():
    cell = random_cell(MGRUCell, (10,), attention_span=2)
    inputs, start = data()
    _, state = cell.run(inputs, cell.state_from_free((start,)))
    assert state[1].shape == (ROWS, 1, 2, WIDTH)


@pytest.mark.parametrize(
    ("kind", "off", "words"),
    [
        (MinimalGRUCell, (6, 7), "nothing is left of the state"),
        (MinimalGRUCell, tuple(range(8)), "nothing is left of the state"),
        (MGRUCell, (2, 3), "nothing is left of the state"),
        (MGRUCell, (7,), "switch off 6 too"),
        (MGRUCell, (4, 9), "switch off 6 too"),
        (MGRUCell, (6, 7, 9), "can't both be off"),
        (MGRUCell, (10, 11), "can't both be off"),
        (MGRUCell, (2, 10), "nothing reads the attention"),
    ],
)
def test_invalid_switch_sets_are_refused(kind, off, words):
    with pytest.raises(UserError, match=words):
        kind(INPUT, WIDTH, off=off)


@pytest.mark.parametrize(
    ("name", "off", "stays"),
    [
        ("gru-minimal", (), False),
        ("gru-minimal", (7,), True),
        ("gru-minimal", (3, 5), True),
        ("mgru", (), False),
        ("mgru", (1,), True),
        ("mgru", (1, 4), False),
    ],
)
def test_can_leave_zero_predicts_zero_states(name, off, stays):
    torch.manual_seed(0)
    cell = build_cell(name, INPUT, WIDTH, off)
    for parameter in cell.parameters():
        parameter.data.normal_()
    outputs, _ = cell.run(torch.randn(2, 5, INPUT), (torch.zeros(2, WIDTH),))
    assert cell.can_leave_zero is not stays
    assert bool((outputs == 0).all()) is stays


def test_build_cell_by_name():
    assert build_cell("mgru", 4, 6, "tanh,6").off == {4, 6}
    assert build_cell("gru-minimal", 4, 6, ["gate-input", 4]).off == {0, 4}
    for name in ("rnn", "linear", "lstm", "lstm-peephole", "lstm-coupled", "gru", "gru-notes"):
        outputs, _ = (cell := build_cell(name, 4, 6)).run(
            torch.zeros(1, 2, 4), cell.start(1, torch.zeros(1))
        )
        assert outputs.shape == (1, 2, 6)
    with pytest.raises(UserError, match="has no switches"):
        build_cell("gru", 4, 6, (1,))
    with pytest.raises(UserError, match="no cell called 'gruu'"):
        build_cell("gruu", 4, 6)


def test_parse_switches_by_number_and_name():
    assert parse_switches("6,4", MGRU_SWITCHES) == (4, 6)
    assert parse_switches("candidate_bias, gate-input,0", MINIMAL_GRU_SWITCHES) == (0, 5)
    assert parse_switches("-1", MGRU_SWITCHES) == parse_switches((), MGRU_SWITCHES) == ()
    with pytest.raises(UserError, match=r"no switch '8'.*0 gate-input.*7 admit"):
        parse_switches("8", MINIMAL_GRU_SWITCHES, of="gru-minimal")
    with pytest.raises(UserError, match="has no switches"):
        parse_switches("1", ())
