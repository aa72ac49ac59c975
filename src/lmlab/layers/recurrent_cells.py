"""Recurrent cells: Elman, linear, LSTM, GRU, peephole and coupled LSTM, GRU with reset input.

A cell is a `CausalMixer`; its state is (B, W) tensors named by `names`, the output first. The
standard cells call torch's fused kernels; the others loop over time with the input projections done
outside the loop: one large product instead of T small ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.state import State, TensorState
from lmlab.layers.sequence_mixer import CausalMixer, LayerContext

CellState = tuple[Tensor, ...]

PARTS = ("weight", "bias")
LSTM_GATES = {
    "input gate": "1 writes the candidate into the cell state",
    "forget gate": "1 keeps the cell state, 0 erases it",
    "output gate": "1 outputs the cell state",
}


class RecurrentCell(CausalMixer):
    """Inputs (B, T, D) and a state to outputs (B, T, W) and the final state."""

    supported_masks = (CausalMask,)
    has_bounded_state = True
    kind = "recurrence"
    names: tuple[str, ...] = ("hidden",)
    """Names of the tensors of its state."""
    free_state_names: tuple[str, ...] = ("hidden",)
    """Those that an initial state may choose freely; the others follow from them."""
    can_leave_zero: bool = True
    """Whether a zero state can ever become non-zero."""
    gate_captions: Mapping[str, str] = {}
    """Its gates by name, each with the meaning of being open."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.input_width = input_width
        self.width = width

    @abstractmethod
    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Outputs (B, T, W) for inputs (B, T, D) from a state, and the state after them."""

    def forward(self, values: Tensor, context: LayerContext) -> Tensor:
        return self.step(values, context, self.initial_state(len(values), values))[0]

    def initial_state(self, rows: int, like: Tensor) -> TensorState:
        return TensorState(dict(zip(self.names, self.start(rows, like), strict=True)))

    def step(
        self, values: Tensor, context: LayerContext, state: State
    ) -> tuple[Tensor, TensorState]:
        assert isinstance(state, TensorState)
        before = tuple(state[name] for name in self.names)
        if context.record is not None:
            for name, gate in self.gates(values, before).items():
                context.add(name, self.gate_capture(name, gate))
        outputs, after = self.run(values, before)
        return outputs, TensorState(dict(zip(self.names, after, strict=True)))

    def read(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        """Encode rows of different lengths (B,) from zeros: outputs, and each row's final state.

        Outputs at padding are arbitrary. Reference implementation: a finished row keeps its state.
        """
        state, outputs = self.start(len(inputs), inputs), []
        for step, vector in enumerate(inputs.split(1, dim=1)):
            output, after = self.run(vector, state)
            active = (step < lengths)[:, None]
            state = tuple(
                torch.where(active, new, old) for new, old in zip(after, state, strict=True)
            )
            outputs.append(output)
        return torch.cat(outputs, 1), state

    def start(self, rows: int, like: Tensor) -> CellState:
        """The zero state, on the device and in the dtype of a given tensor."""
        return self.state_from_free(
            tuple(like.new_zeros(rows, self.width) for _ in self.free_state_names)
        )

    def state_from_free(self, free: CellState) -> CellState:
        """The state from free numbers, (B, W) for each of `free_state_names`: often themselves."""
        return free

    def gates(self, inputs: Tensor, state: CellState) -> dict[str, Tensor]:
        """Gate activations over time by name, each (B, T, W), for figures; often none.

        Reference implementation: step by step for the states, then the gate formula.
        """
        if not self.gate_captions:
            return {}
        previous: list[CellState] = []
        for vector in inputs.split(1, dim=1):
            previous.append(state)
            _, state = self.run(vector, state)
        stacked = tuple(torch.stack(parts, 1) for parts in zip(*previous, strict=True))
        gates = self._gates(inputs, stacked)
        return dict(zip(self.gate_captions, gates, strict=True))

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        """Gates from the inputs (B, T, D) and the previous states, (B, T, W); for cells with gates.

        The names of `gate_captions` say which.
        """
        return ()

    def gate_capture(self, name: str, gate: Tensor) -> Capture:
        """A gate's activations (B, T, W) as a labelled capture."""
        return Capture(
            values=gate.detach(),
            axes=("batch", "time", "unit"),
            caption=f"The {name} of every unit, at the step that predicts each token: "
            f"{self.gate_captions[name]}.",
            bounds=UNIT_INTERVAL,
        )


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """torch.lerp of tensors of several precisions, which autocast does not promote."""
    if start.dtype == end.dtype == weight.dtype:
        return torch.lerp(start, end, weight)
    dtype = torch.promote_types(torch.promote_types(start.dtype, end.dtype), weight.dtype)
    return torch.lerp(start.to(dtype), end.to(dtype), weight.to(dtype))


class FusedCell(RecurrentCell):
    """A cell implemented by one of torch's fused kernels."""

    fused: nn.RNNBase

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        outputs, last = self.fused(inputs, state[0][None].contiguous())
        return outputs, (last[0],)

    def read(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        packed = pack_padded_sequence(
            inputs, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, last = self.fused(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
        return padded, tuple(part[0] for part in (last if isinstance(last, tuple) else (last,)))


class TanhCell(FusedCell):
    """Elman RNN h_t = tanh(W x_t + U h_{t-1} + b) (Elman 1990), fused.

    `radius` initialises the spectral radius of U: gradients grow or vanish as radius^t.
    """

    def __init__(self, input_width: int, width: int, *, radius: float | None = None) -> None:
        super().__init__(input_width, width)
        self.fused = nn.RNN(input_width, width, batch_first=True)
        if radius is not None:
            set_spectral_radius(self.fused.get_parameter("weight_hh_l0"), radius)


class LinearCell(RecurrentCell):
    """Linear RNN h_t = W x_t + U h_{t-1} + b, whose gradient is exactly U^t."""

    def __init__(self, input_width: int, width: int, *, radius: float | None = None) -> None:
        super().__init__(input_width, width)
        self.from_input = nn.Linear(input_width, width)
        self.from_hidden = nn.Parameter(torch.empty(width, width))
        nn.init.orthogonal_(self.from_hidden)
        if radius is not None:
            set_spectral_radius(self.from_hidden, radius)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        (hidden,) = state
        outputs = []
        for projected in self.from_input(inputs).unbind(1):
            hidden = torch.addmm(projected, hidden, self.from_hidden.t())
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden,)


class LSTMCell(FusedCell):
    """LSTM (Hochreiter and Schmidhuber 1997; forget gate Gers et al. 2000), fused.

    i, f, o = σ(W [h_{t-1}, x_t] + b);  g = tanh(…)
    c_t = f∘c_{t-1} + i∘g;  h_t = o∘tanh(c_t)
    """

    names = ("hidden", "cell")
    free_state_names = ("hidden", "cell")
    gate_captions = LSTM_GATES

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.fused = nn.LSTM(input_width, width, batch_first=True)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden, cell = (part[None].contiguous() for part in state)
        outputs, (hidden, cell) = self.fused(inputs, (hidden, cell))
        return outputs, (hidden[0], cell[0])

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        admit, keep, _, show = _fused_sums(self.fused, inputs, previous[0])
        return admit.sigmoid(), keep.sigmoid(), show.sigmoid()


class GRUCell(FusedCell):
    """GRU (Cho et al. 2014), fused; torch's form, reset after the product.

    r, z = σ(W [x_t, h_{t-1}] + b);  n = tanh(W_n x_t + b_n + r∘(U_n h_{t-1} + c_n))
    h_t = (1 - z)∘n + z∘h_{t-1}
    """

    gate_captions = {
        "reset gate": "1 feeds the old state to the candidate",
        "update gate": "1 keeps the old state, 0 takes the candidate",
    }

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.fused = nn.GRU(input_width, width, batch_first=True)

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        reset, update, _ = _fused_sums(self.fused, inputs, previous[0])
        return reset.sigmoid(), update.sigmoid()


class PeepholeLSTMCell(RecurrentCell):
    """Peephole LSTM: f, i, o also see c_{t-1}, here by full matrices.

        i, f, o = σ(W [h_{t-1}, x_t, c_{t-1}] + b);  g = tanh(W_c [h_{t-1}, x_t] + b_c)
        c_t = f∘c_{t-1} + i∘g;  h_t = o∘tanh(c_t)

    In Gers and Schmidhuber 2000 the peephole matrices are diagonal.
    """

    names = ("hidden", "cell")
    free_state_names = ("hidden", "cell")
    gate_captions = LSTM_GATES

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.from_input = nn.Linear(input_width, 4 * width)
        self.from_hidden = nn.Parameter(torch.empty(width, 4 * width))
        self.from_cell = nn.Parameter(torch.empty(width, 3 * width))
        for weight in (self.from_hidden, self.from_cell):
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden, cell = state
        width = self.width
        # The candidate does not see the cell: zeros make both products one.
        blind = F.pad(self.from_cell, (0, width))
        recurrent = torch.cat([self.from_hidden, blind])
        outputs = []
        for projected in self.from_input(inputs.transpose(0, 1)).unbind(0):
            summed = torch.addmm(projected, torch.cat([hidden, cell], 1), recurrent)
            gates = summed[:, : 3 * width].sigmoid()
            admit, keep, show = gates.chunk(3, dim=1)
            candidate = summed[:, 3 * width :].tanh()
            cell = torch.addcmul(keep * cell, admit, candidate)
            hidden = show * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden, cell)

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        hidden, cell = previous
        summed = (self.from_input(inputs) + hidden @ self.from_hidden)[..., : 3 * self.width]
        return (summed + cell @ self.from_cell).sigmoid().chunk(3, dim=-1)


class CoupledLSTMCell(RecurrentCell):
    """Coupled LSTM with f = 1 - i (Greff et al. 2017): new content replaces old.

    i, o = σ(W [h_{t-1}, x_t] + b);  g = tanh(…)
    c_t = c_{t-1} + i∘(g - c_{t-1});  h_t = o∘tanh(c_t)
    """

    names = ("hidden", "cell")
    free_state_names = ("hidden", "cell")
    gate_captions = {
        "input gate": "1 replaces the cell state by the candidate",
        "output gate": LSTM_GATES["output gate"],
    }

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.from_input = nn.Linear(input_width, 3 * width)
        self.from_hidden = nn.Parameter(torch.empty(width, 3 * width))
        nn.init.uniform_(self.from_hidden, -(width**-0.5), width**-0.5)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        hidden, cell = state
        width = self.width
        outputs = []
        for projected in self.from_input(inputs.transpose(0, 1)).unbind(0):
            summed = torch.addmm(projected, hidden, self.from_hidden)
            admit, show = summed[:, : 2 * width].sigmoid().chunk(2, dim=1)
            cell = lerp(cell, summed[:, 2 * width :].tanh(), admit)
            hidden = show * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden, cell)

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        summed = self.from_input(inputs) + previous[0] @ self.from_hidden
        return summed[..., : 2 * self.width].sigmoid().chunk(2, dim=-1)


class InputResetGRUCell(RecurrentCell):
    """GRU variant whose reset gate multiplies the input, without biases.

        z, r = σ(W [h_{t-1}, x_t]);  h̃ = tanh(W [h_{t-1}, r∘x_t]);  h_t = (1 - z)∘h_{t-1} + z∘h̃

    In the original (Cho et al. 2014) the reset gate multiplies h_{t-1}; this is intended.
    """

    gate_captions = {
        "update gate": "1 takes the candidate, 0 keeps the old state",
        "reset gate": "1 feeds the input to the candidate",
    }

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.gates_from_input = nn.Linear(input_width, width + input_width, bias=False)
        self.candidate_from_input = nn.Parameter(torch.empty(input_width, width))
        self.from_hidden = nn.Parameter(torch.empty(width, 2 * width + input_width))
        for weight in (self.candidate_from_input, self.from_hidden):
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        (hidden,) = state
        width, outputs = self.width, []
        by_time = inputs.transpose(0, 1)
        # The candidate's share of the product with h is in the last columns, without input.
        projected = F.pad(self.gates_from_input(by_time), (0, width))
        for observed, waiting in zip(by_time.unbind(0), projected.unbind(0), strict=True):
            summed = torch.addmm(waiting, hidden, self.from_hidden)
            gates = summed[:, :-width].sigmoid()
            update, reset = gates[:, :width], gates[:, width:]
            candidate = torch.addmm(
                summed[:, -width:], reset * observed, self.candidate_from_input
            ).tanh()
            hidden = lerp(hidden, candidate, update)
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden,)

    def _gates(self, inputs: Tensor, previous: CellState) -> tuple[Tensor, ...]:
        width = self.width
        summed = self.gates_from_input(inputs) + previous[0] @ self.from_hidden[:, :-width]
        gates = summed.sigmoid()
        return gates[..., :width], gates[..., width:]


def _fused_sums(fused: nn.RNNBase, inputs: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
    """W x + U h + b of each of a fused cell's gates, in torch's order.

    For the GRU's candidate the product with h is gated separately, so its sum is meaningless.
    """
    from_input = F.linear(inputs, *(fused.get_parameter(f"{kind}_ih_l0") for kind in PARTS))
    from_hidden = F.linear(previous, *(fused.get_parameter(f"{kind}_hh_l0") for kind in PARTS))
    return (from_input + from_hidden).split(fused.hidden_size, dim=-1)


def set_spectral_radius(weight: Tensor, radius: float) -> None:
    """Scale a square matrix in place so that its largest eigenvalue has the given modulus."""
    with torch.no_grad():
        largest = torch.linalg.eigvals(weight).abs().max()
        weight.mul_(radius / largest)
