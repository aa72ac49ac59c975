"""Segment-recurrent Transformer (Transformer-XL): segments with a memory of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.transformer import TransformerState
from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.block import BlockState
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.stack import Stack

MAX_STALE_POSITIONS = 32
"""Expired positions that a stepping state may hold before they are dropped in one copy."""


class SegmentRecurrentTransformer(Backbone):
    """Transformer-XL: layers attend to the segment and a memory before it (Dai et al. 2019).

        h^n_τ+1 = Layer(query = h^n-1_τ+1, keys and values = [SG(h^n-1_τ), h^n-1_τ+1])

    A view is processed in segments of `segment` positions. The memory holds the inputs of each
    layer at the last positions; no gradient flows into them (SG), but it does into their key and
    value projections. The attention mask depends on the mode of the module:

    - in training a position attends to its segment, causally, and to the whole memory, which holds
      the last `memory` positions before the segment;
    - in evaluation it attends to itself and, in each layer, the `eval_memory_length` positions
      before it, across segment boundaries (`same_length` in the authors' code). So scores do not
      depend on the segmentation: at once, in blocks or token by token are the same. A text of at
      most eval_memory_length + 1 positions is attended to in full; in a longer one the receptive
      field is layers · eval_memory_length positions.

    Inputs (B, T), hidden (B, T, W); cost O(T (S + M) W + T W² (1 + M / S)) per layer, for segments
    of S and a memory of M. The state after a text is the memory. Stepping from `initial_state`
    caches keys and values of a bounded number of positions: the cost per token is constant.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)
    cpu_tokens_at_once: ClassVar[int | None] = 1024

    def __init__(
        self,
        embedding: InputEmbedding,
        stack: Stack,
        *,
        width: int,
        segment: int,
        memory: int,
        eval_memory_length: int,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.width = width
        self.segment = segment
        self.memory = memory
        self.eval_memory_length = self.memory_length = eval_memory_length

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view that continues from a memory, or from a stepping state."""
        if isinstance(state, TransformerState):
            return self._step(view, state)
        assert state is None or isinstance(state, TensorState)
        # In evaluation any size gives the same; smaller ones project the memory more often.
        size = self.segment if self.training else max(self.segment, self.eval_memory_length)
        memory, outputs = state, []
        for part in split_segments(view, size):
            values, memory = self._encode(part, memory)
            outputs.append(values)
        if not outputs:
            return HiddenStates(values=self._embed(view.inputs), state=memory)
        return HiddenStates(values=torch.cat(outputs, 1), state=memory)

    def _encode(
        self, view: View, memory: TensorState | None, record: dict[str, Capture] | None = None
    ) -> tuple[Tensor, TensorState]:
        """(B, T, W) the hidden states of one segment, and the memory after it."""
        context, values = self._context(view, memory), self._embed(view.inputs)
        if record is not None:
            context = context.with_captures(record)
        segment = SegmentInputs(memory)
        values = self.stack(values, context, content=segment.with_memory)
        return values, self._update_memory(view, segment.layer_inputs, memory)

    def _embed(self, inputs: Tensor) -> Tensor:
        """(B, T, W) input of the first layer, without absolute positions."""
        positions = torch.arange(inputs.shape[1], device=inputs.device)[None]
        values: Tensor = self.embedding(inputs, positions)
        return values

    def _context(self, view: View, memory: TensorState | None) -> LayerContext:
        """The segment's positions are 0, 1, 2 …; those of the memory are negative."""
        positions = torch.arange(view.inputs.shape[1], device=view.inputs.device)[None]
        keys, non_empty = positions, torch.ones_like(positions, dtype=torch.bool)
        if memory is not None:
            past, rows = memory["positions"], len(view.inputs)
            keys = torch.cat([past, positions.expand(rows, -1)], 1)
            non_empty = torch.cat([past < 0, non_empty.expand(rows, -1)], 1)
        max_distance = None if self.training else self.eval_memory_length
        return LayerContext(
            mask=_distance_mask(positions, keys, non_empty, _limit_distance(max_distance, view)),
            query_positions=positions,
            key_positions=keys,
        )

    def _update_memory(
        self, view: View, layer_inputs: dict[str, Tensor], memory: TensorState | None
    ) -> TensorState:
        """The last non-padding positions of each row, up to the memory length of the mode.

        `positions` counts back from the next position: -1 is the last one; 0 marks empty entries,
        in rows with fewer positions than others.
        """
        max_length = self.memory if self.training else self.eval_memory_length
        return extend_memory(
            memory, layer_inputs, view, step=view.lengths[:, None], max_length=max_length
        )

    # Token by token -----------------------------------------------------------------------------

    def initial_state(self, rows: int) -> TransformerState:
        layers = self.stack.initial_states(rows)
        device = next(self.parameters()).device
        empty = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return TransformerState(layers, empty, empty.bool())

    def _step(self, view: View, state: TransformerState) -> HiddenStates:
        """New positions (B, new), without padding, under the evaluation mask in either mode."""
        if state.positions.shape[1] >= self.eval_memory_length + MAX_STALE_POSITIONS:
            state = _truncated(state, self.eval_memory_length)
        positions = _next_positions(view, state)
        keys = torch.cat([state.positions, positions], 1)
        non_empty = torch.ones_like(keys, dtype=torch.bool)
        context = LayerContext(
            mask=_distance_mask(
                positions, keys, non_empty, _limit_distance(self.eval_memory_length, view)
            ),
            query_positions=positions,
            key_positions=keys,
        )
        values = self.embedding(view.inputs, positions)
        values, layers = self.stack.step(values, context, state.layers)
        return HiddenStates(values=values, state=TransformerState(layers, keys, non_empty))

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention, its sublayers' outputs and its hidden states, in one segment."""
        record: dict[str, Capture] = {}
        self._encode(view, None, record)
        return record


def split_segments(view: View, size: int) -> Iterator[View]:
    """Split a view into segments of `size`; rows that have ended are all padding."""
    for start in range(0, view.inputs.shape[1], size):
        inputs = view.inputs[:, start : start + size]
        lengths = (view.lengths - start).clamp(0, inputs.shape[1])
        yield View(inputs=inputs, lengths=lengths, attention_mask=view.attention_mask)


class SegmentInputs:
    """The inputs of each layer in one segment, and the memory of earlier ones before them.

    Of values (B, T, W), the first `length` are content; those after them (a query stream) attend
    and are not attended to. No gradient flows into what is kept for the next segment.
    """

    def __init__(self, memory: TensorState | None, length: int | None = None) -> None:
        self.memory = memory
        self.length = length
        self.layer_inputs: dict[str, Tensor] = {}

    def with_memory(self, layer: int, values: Tensor) -> Tensor | None:
        """(B, M + T, W) what a layer with these inputs attends to; None for the inputs alone."""
        name, content = f"layer.{layer}", values[:, : self.length]
        self.layer_inputs[name] = content.detach()
        if self.memory is not None:
            return torch.cat([self.memory[name], content], 1)
        return None if content.shape[1] == values.shape[1] else content


def extend_memory(
    memory: TensorState | None,
    layer_inputs: dict[str, Tensor],
    view: View,
    *,
    step: Tensor,
    max_length: int,
) -> TensorState:
    """Memory after a segment: its layer inputs (B, T, W) appended, the last positions retained.

    `step` (B, 1) positions of the segment precede the next one, from which `positions` counts back.
    """
    rows, time = view.inputs.shape[:2]
    position = torch.arange(time, device=step.device).expand(rows, -1)
    positions = (position - step).clamp(max=0)
    if memory is not None:
        past = memory["positions"]
        positions = torch.cat([past.where(past == 0, past - step), positions], 1)
        layer_inputs = {
            name: torch.cat([memory[name], values], 1) for name, values in layer_inputs.items()
        }
    real = positions < 0
    count = min(max_length, int(real.sum(1).max()))
    # Empty entries first, the others after them in order; the last ones are retained.
    retained = real.long().argsort(dim=1, stable=True)[:, real.shape[1] - count :]
    row = torch.arange(rows, device=retained.device)[:, None]
    layers = {name: values[row, retained] for name, values in layer_inputs.items()}
    return TensorState({"positions": positions[row, retained], **layers})


def drop_oldest(layers: Iterable[BlockState], count: int) -> tuple[BlockState, ...]:
    """The KV caches of the layers without the first `count` positions."""
    caches = [layer.mixer for layer in layers]
    return tuple(
        BlockState(cache.drop_oldest(count)) for cache in caches if isinstance(cache, KVCache)
    )


def _limit_distance(max_distance: int | None, view: View) -> int | None:
    """How far back a position may attend, limited by the view's mask; None for no limit."""
    assert isinstance(view.attention_mask, CausalMask)
    if view.attention_mask.window is None:
        return max_distance
    allowed = view.attention_mask.window - 1
    return allowed if max_distance is None else min(max_distance, allowed)


def _distance_mask(
    queries: Tensor, keys: Tensor, non_empty: Tensor, max_distance: int | None
) -> Tensor:
    """(B or 1, 1, Tq, Tk) whether each key is non-empty and 0 to `max_distance` positions back."""
    distance = queries[:, :, None] - keys[:, None, :]
    visible = (distance >= 0) & non_empty[:, None]
    if max_distance is not None:
        visible = visible & (distance <= max_distance)
    return visible[:, None]


def _next_positions(view: View, state: TransformerState) -> Tensor:
    """(B, new) the positions after the last one in the state; only distances matter."""
    rows, count = view.inputs.shape
    following = torch.arange(count, device=view.inputs.device).expand(rows, -1)
    if not state.positions.shape[1]:
        return following
    return following + state.positions[:, -1:] + 1


def _truncated(state: TransformerState, memory: int) -> TransformerState:
    """The state truncated to the last `memory` positions."""
    start = state.positions.shape[1] - memory
    return replace(
        state,
        layers=drop_oldest(state.layers, start),
        positions=state.positions[:, start:],
        non_padding=state.non_padding[:, start:],
    )
