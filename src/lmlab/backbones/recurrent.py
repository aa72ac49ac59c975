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
            for layer, cell in self._layers()
            for name in cell.free_state_names
        }

    def state_from_free(self, free: Mapping[str, Tensor]) -> TensorState:
        """The state given by a tensor (rows, W) for each of `free_state_widths`."""
        tensors: dict[str, Tensor] = {}
        for layer, cell in self._layers():
            begun = cell.state_from_free(
                tuple(free[f"{layer}.{name}"] for name in cell.free_state_names)
            )
            tensors.update(zip(_names(layer, cell), begun, strict=True))
        return TensorState(tensors)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        found, after = self.all_layers(view, state)
        return HiddenStates(values=self.output(found[-1]), state=after)

    def all_layers(
        self, view: View, state: State | None = None
    ) -> tuple[list[Tensor], TensorState]:
        """The embeddings and every layer's output, (B, T, W) each, and the state after them."""
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        after: dict[str, Tensor] = {}
        found: list[Tensor] = [self.embedding(view.inputs)]
        for layer, cell in self._layers():
            names = _names(layer, cell)
            begun = tuple(before[name] for name in names)
            values, parts = cell(self.dropout(found[-1]), begun)
            found.append(values)
            after.update(zip(names, parts, strict=True))
        return found, TensorState(after)

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Every layer's gates over time, continuing from `state` where given."""
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        captures: dict[str, Capture] = {}
        values = self.embedding(view.inputs)
        for layer, cell in self._layers():
            begun = tuple(before[name] for name in _names(layer, cell))
            for name, gate in cell.gates(values, begun).items():
                title = name if len(self.cells) == 1 else f"layer {layer + 1} {name}"
                captures[title] = Capture(
                    values=gate,
                    axes=("batch", "time", "unit"),
                    caption=f"The {name} of every unit, at the step that predicts each token: "
                    f"{cell.gate_captions[name]}.",
                    bounds=UNIT_INTERVAL,
                )
            values, _ = cell(values, begun)
        return captures

    def _layers(self) -> Iterator[tuple[int, RecurrentCell]]:
        for layer, cell in enumerate(self.cells):
            assert isinstance(cell, RecurrentCell)
            yield layer, cell


def _names(layer: int, cell: RecurrentCell) -> list[str]:
    return [f"{layer}.{name}" for name in cell.names]
