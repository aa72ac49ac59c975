"""Recurrent neural network (RNN) backbone: embeddings, stacked cells of any kind, dropout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.block import Block, BlockState, NoResidual
from lmlab.layers.recurrent_cells import RecurrentCell
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.stack import LayerPass, Stack

WITHOUT_CAPTURES = LayerContext()


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
        self.stack = stack_cells(cells, dropout)
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
            for layer, cell in stacked_cells(self.stack)
            for name in cell.free_state_names
        }

    def state_from_free(self, free: Mapping[str, Tensor]) -> TensorState:
        """The state given by a tensor (rows, W) for each of `free_state_widths`."""
        tensors: dict[str, Tensor] = {}
        for layer, cell in stacked_cells(self.stack):
            cell_state = cell.state_from_free(
                tuple(free[f"{layer}.{name}"] for name in cell.free_state_names)
            )
            tensors.update(zip(state_names(layer, cell), cell_state, strict=True))
        return TensorState(tensors)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        values, after = self._run(view, state, WITHOUT_CAPTURES)
        return HiddenStates(values=self.output(values), state=after)

    def all_layers(self, view: View) -> LayerPass:
        """The embeddings and every layer's output, (B, T, W) each."""
        passes: list[LayerPass] = []
        with self.stack.recorded_passes(passes):
            self._run(view, None, WITHOUT_CAPTURES)
        return passes[0]

    def _run(
        self, view: View, state: State | None, context: LayerContext
    ) -> tuple[Tensor, TensorState]:
        """(B, T, W) the last layer's output, and the state after it."""
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        values, after = self.stack.step(
            self.embedding(view.inputs), context, split_state(self.stack, previous)
        )
        return values, join_states(self.stack, after)

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Every layer's gates over time and its outputs, continuing from `state` where given."""
        record: dict[str, Capture] = {}
        self._run(view, state, WITHOUT_CAPTURES.with_captures(record))
        return record


def stack_cells(
    cells: Sequence[RecurrentCell], dropout: float, *, first_dropout: float | None = None
) -> Stack:
    """A stack of recurrent cells, with dropout on the input of each, or another on the first's."""
    rates = [dropout if first_dropout is None else first_dropout, *[dropout] * (len(cells) - 1)]
    return Stack([Block(cell, NoResidual(rate)) for cell, rate in zip(cells, rates, strict=True)])


def stacked_cells(stack: Stack) -> list[tuple[int, RecurrentCell]]:
    """The number, from 0, and cell of each layer that is not disabled."""
    cells = [(layer - 1, block.mixer) for layer, block in stack.layers()]
    return [(layer, cell) for layer, cell in cells if isinstance(cell, RecurrentCell)]


def state_names(layer: int, cell: RecurrentCell) -> list[str]:
    """Names of a layer's tensors in the state of a stack."""
    return [f"{layer}.{name}" for name in cell.names]


def split_state(stack: Stack, state: TensorState) -> list[BlockState]:
    """The state of each layer, of a state of the whole stack."""
    prefixes = [f"{layer - 1}." for layer, _ in stack.layers()]
    return [
        BlockState(
            TensorState(
                {
                    name.removeprefix(prefix): value
                    for name, value in state.tensors.items()
                    if name.startswith(prefix)
                }
            )
        )
        for prefix in prefixes
    ]


def join_states(stack: Stack, states: Iterable[BlockState]) -> TensorState:
    """The state of the whole stack, of the states of its layers."""
    tensors: dict[str, Tensor] = {}
    for (layer, _), state in zip(stack.layers(), states, strict=True):
        assert isinstance(state.mixer, TensorState)
        for name, value in state.mixer.tensors.items():
            tensors[f"{layer - 1}.{name}"] = value
    return TensorState(tensors)
