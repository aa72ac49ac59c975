"""Segment-recurrent Transformer (Transformer-XL): segments with a memory of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.transformer import TransformerStack, TransformerState, capture_hidden
from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.transformer_block import BlockCache

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
        stack: TransformerStack,
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
        self.eval_memory_length = eval_memory_length

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view that continues from a memory, or from a stepping state."""
        if isinstance(state, TransformerState):
            return self._step(view, state)
        assert state is None or isinstance(state, TensorState)
        # In evaluation any size gives the same; smaller ones project the memory more often.
        size = self.segment if self.training else max(self.segment, self.eval_memory_length)
        memory, read = state, []
        for part in split_segments(view, size):
            values, memory = self._read(part, memory)
            read.append(values)
        if not read:
            return HiddenStates(values=self._embedded(view.inputs), state=memory)
        return HiddenStates(values=torch.cat(read, 1), state=memory)

    def _read(
        self, view: View, memory: TensorState | None, record: dict[str, Capture] | None = None
    ) -> tuple[Tensor, TensorState]:
        """(B, T, W) the hidden states of one segment, and the memory after it."""
        scope, values = self._scope(view, memory), self._embedded(view.inputs)
        if record is not None:
            scope = scope.with_captures(record)
        scope, below = self.stack.biased(scope), {}
        for layer, block in self.stack.layers():
            inside = self.stack.layer_context(scope, layer)
            below[_name(layer)] = values.detach()
            joined = None if memory is None else torch.cat([memory[_name(layer)], values], 1)
            values = block(values, inside, content=joined)
            capture_hidden(inside, values)
        return self.stack.finish(values), self._remember(view, below, memory)

    def _embedded(self, inputs: Tensor) -> Tensor:
        """(B, T, W) input of the first layer, without absolute positions."""
        places = torch.arange(inputs.shape[1], device=inputs.device)[None]
        values: Tensor = self.embedding(inputs, places)
        return values

    def _scope(self, view: View, memory: TensorState | None) -> AttentionContext:
        """The segment's positions are 0, 1, 2 …; those of the memory are negative."""
        places = torch.arange(view.inputs.shape[1], device=view.inputs.device)[None]
        keys, known = places, torch.ones_like(places, dtype=torch.bool)
        if memory is not None:
            past, rows = memory["positions"], len(view.inputs)
            keys = torch.cat([past, places.expand(rows, -1)], 1)
            known = torch.cat([past < 0, known.expand(rows, -1)], 1)
        reach = None if self.training else self.eval_memory_length
        return AttentionContext(
            mask=_looking_back(places, keys, known, _shorter(reach, view)),
            query_positions=places,
            key_positions=keys,
        )

    def _remember(
        self, view: View, below: dict[str, Tensor], before: TensorState | None
    ) -> TensorState:
        """The last non-padding positions of each row, up to the memory length of the mode.

        `positions` counts back from the next position: -1 is the last one; 0 marks empty entries,
        in rows with fewer positions than others.
        """
        rows, time = view.inputs.shape
        place = torch.arange(time, device=view.inputs.device)
        positions = (place - view.lengths[:, None]).clamp(max=0)
        if before is not None:
            past = before["positions"]
            moved = past.where(past == 0, past - view.lengths[:, None])
            positions = torch.cat([moved, positions], 1)
            below = {name: torch.cat([before[name], new], 1) for name, new in below.items()}
        real = positions < 0
        most = self.memory if self.training else self.eval_memory_length
        count = min(most, int(real.sum(1).max()))
        # Empty entries first, the others after them in order; the last ones are retained.
        kept = real.long().argsort(dim=1, stable=True)[:, real.shape[1] - count :]
        row = torch.arange(rows, device=kept.device)[:, None]
        layers = {name: each[row, kept] for name, each in below.items()}
        return TensorState({"positions": positions[row, kept], **layers})

    # Token by token -----------------------------------------------------------------------------

    def initial_state(self, rows: int) -> TransformerState:
        layers = tuple(block.initial_cache(rows) for _, block in self.stack.layers())
        device = next(self.parameters()).device
        nothing = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return TransformerState(layers, nothing, nothing.bool())

    def _step(self, view: View, state: TransformerState) -> HiddenStates:
        """New positions (B, new), without padding, under the evaluation mask in either mode."""
        if state.positions.shape[1] >= self.eval_memory_length + MAX_STALE_POSITIONS:
            state = _shortened(state, self.eval_memory_length)
        places = _next_places(view, state)
        keys = torch.cat([state.positions, places], 1)
        known = torch.ones_like(keys, dtype=torch.bool)
        scope = AttentionContext(
            mask=_looking_back(places, keys, known, _shorter(self.eval_memory_length, view)),
            query_positions=places,
            key_positions=keys,
        )
        values = self.embedding(view.inputs, places)
        values, layers = self.stack.step(values, scope, state.layers, places)
        return HiddenStates(values=values, state=TransformerState(layers, keys, known))

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention, its sublayers' outputs and its hidden states, in one segment."""
        record: dict[str, Capture] = {}
        self._read(view, None, record)
        return record


def split_segments(view: View, size: int) -> Iterator[View]:
    """Split a view into segments of `size`; rows that have ended are all padding."""
    for first in range(0, view.inputs.shape[1], size):
        inputs = view.inputs[:, first : first + size]
        lengths = (view.lengths - first).clamp(0, inputs.shape[1])
        yield View(inputs=inputs, lengths=lengths, attention_mask=view.attention_mask)


def _name(layer: int) -> str:
    return f"layer.{layer}"


def _shorter(reach: int | None, view: View) -> int | None:
    """How far back a position may attend, limited by the view's mask; None for no limit."""
    assert isinstance(view.attention_mask, CausalMask)
    if view.attention_mask.window is None:
        return reach
    allowed = view.attention_mask.window - 1
    return allowed if reach is None else min(reach, allowed)


def _looking_back(queries: Tensor, keys: Tensor, known: Tensor, reach: int | None) -> Tensor:
    """(B or 1, 1, Tq, Tk) whether each key is non-empty and 0 to `reach` positions back."""
    distance = queries[:, :, None] - keys[:, None, :]
    seen = (distance >= 0) & known[:, None]
    if reach is not None:
        seen = seen & (distance <= reach)
    return seen[:, None]


def _next_places(view: View, state: TransformerState) -> Tensor:
    """(B, new) the positions after the last one in the state; only distances matter."""
    rows, new = view.inputs.shape
    following = torch.arange(new, device=view.inputs.device).expand(rows, -1)
    if not state.positions.shape[1]:
        return following
    return following + state.positions[:, -1:] + 1


def _shortened(state: TransformerState, memory: int) -> TransformerState:
    """The state truncated to the last `memory` positions."""
    first = state.positions.shape[1] - memory
    layers = tuple(
        BlockCache(
            KVCache.of(
                layer.self_attention_cache.keys[:, :, first:],
                layer.self_attention_cache.values[:, :, first:],
            )
        )
        for layer in state.layers
    )
    kept = replace(
        state, positions=state.positions[:, first:], non_padding=state.non_padding[:, first:]
    )
    return replace(kept, layers=layers)
