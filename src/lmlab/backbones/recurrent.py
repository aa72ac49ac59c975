"""Recurrent neural network (RNN) backbone: embeddings, stacked cells of any kind, dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.recurrent_cells import RecurrentCell


class Recurrent(Backbone):
    """Stacked RNN: h_t = cell(e(s_t), h_{t-1}), with dropout on embeddings and layer outputs.

    Dropout is applied between layers, not through time (Zaremba et al. 2014). `output` replaces
    dropout on the last layer's output, where the emission has its own. Inputs (B, T), hidden (B, T,
    W); cost O(T) sequential steps.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(
        self,
        embedding: nn.Embedding,
        cells: Sequence[RecurrentCell],
        dropout: float = 0.0,
        *,
        output: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.cells = nn.ModuleList(cells)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Dropout(dropout) if output is None else output
        self.width = cells[-1].width

    def initial_state(self, rows: int) -> TensorState:
        like = self.embedding.weight
        return self.state_from_free(
            {name: like.new_zeros(rows, width) for name, width in self.free_state_widths().items()}
        )

    def free_state_widths(self) -> dict[str, int]:
        """The tensors of an initial state that can be set, with their widths."""
        return {
            f"{layer}.{name}": cell.width
            for layer, cell in stacked_cells(self.cells)
            for name in cell.free_state_names
        }

    def state_from_free(self, free: Mapping[str, Tensor]) -> TensorState:
        """The state given by a tensor (rows, W) for each of `free_state_widths`."""
        tensors: dict[str, Tensor] = {}
        for layer, cell in stacked_cells(self.cells):
            cell_state = cell.state_from_free(
                tuple(free[f"{layer}.{name}"] for name in cell.free_state_names)
            )
            tensors.update(zip(state_names(layer, cell), cell_state, strict=True))
        return TensorState(tensors)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        layers, after = self.all_layers(view, state)
        return HiddenStates(values=self.output(layers[-1]), state=after)

    def all_layers(
        self, view: View, state: State | None = None
    ) -> tuple[list[Tensor], TensorState]:
        """The embeddings and every layer's output, (B, T, W) each, and the state after them."""
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        after: dict[str, Tensor] = {}
        outputs: list[Tensor] = [self.embedding(view.inputs)]
        for layer, cell in stacked_cells(self.cells):
            names = state_names(layer, cell)
            cell_state = tuple(previous[name] for name in names)
            values, next_state = cell(self.dropout(outputs[-1]), cell_state)
            outputs.append(values)
            after.update(zip(names, next_state, strict=True))
        return outputs, TensorState(after)

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Every layer's gates over time, continuing from `state` where given."""
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        captures: dict[str, Capture] = {}
        values = self.embedding(view.inputs)
        for layer, cell in stacked_cells(self.cells):
            cell_state = tuple(previous[name] for name in state_names(layer, cell))
            for name, gate in cell.gates(values, cell_state).items():
                title = name if len(self.cells) == 1 else f"layer {layer + 1} {name}"
                captures[title] = capture_gate(cell, name, gate)
            values, _ = cell(values, cell_state)
        return captures


def stacked_cells(cells: nn.ModuleList) -> Iterator[tuple[int, RecurrentCell]]:
    """The number, from 0, and cell of each layer."""
    for layer, cell in enumerate(cells):
        assert isinstance(cell, RecurrentCell)
        yield layer, cell


def state_names(layer: int, cell: RecurrentCell) -> list[str]:
    """Names of a layer's tensors in the state of a stack."""
    return [f"{layer}.{name}" for name in cell.names]


def capture_gate(cell: RecurrentCell, name: str, gate: Tensor) -> Capture:
    """A gate's activations (B, T, W) as a labelled capture."""
    return Capture(
        values=gate,
        axes=("batch", "time", "unit"),
        caption=f"The {name} of every unit, at the step that predicts each token: "
        f"{cell.gate_captions[name]}.",
        bounds=UNIT_INTERVAL,
    )
