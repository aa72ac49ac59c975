"""Two-stream Transformer (XLNet): a content stream, and a query stream without its own token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import TwoStreamBackbone
from lmlab.backbones.segment_recurrent import SegmentInputs, drop_oldest, extend_memory
from lmlab.backbones.transformer import position_ids
from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates, prediction_mask
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.block import BlockState
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.position_subset import PositionSubset
from lmlab.layers.sequence_mixer import LayerContext, attention_mask_tensor
from lmlab.layers.stack import Stack


class QueryVector(nn.Module):
    """The learned initial vector of every query (XLNet's w)."""

    def __init__(self, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * 0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: int, time: int) -> Tensor:
        """(B, T, W)"""
        vectors: Tensor = self.dropout(self.weight.expand(rows, time, -1))
        return vectors


@dataclass(frozen=True, eq=False)
class TwoStreamCache:
    """Cache for decoding: the content stream only, all rows of one length."""

    layers: tuple[BlockState, ...]
    positions: Tensor
    """(B, n) positions of the cached entries."""
    segments: Tensor
    """(B, n)"""
    count: int = 0
    """Positions so far, which is the next position."""

    def select(self, rows: Tensor) -> TwoStreamCache:
        layers = tuple(layer.select(rows) for layer in self.layers)
        return TwoStreamCache(layers, self.positions[rows], self.segments[rows], self.count)

    def detach(self) -> TwoStreamCache:
        return replace(self, layers=tuple(layer.detach() for layer in self.layers))


class TwoStreamTransformer(TwoStreamBackbone):
    """Two-stream attention (XLNet, Yang et al. 2019): content h and queries g share all layers.

        h_i ← Layer(query = h_i, keys and values = h_j that `attention_mask` shows to i)
        g_i ← Layer(query = g_i, keys and values = h_j that `query_attention_mask` shows to i)

    If the view has a `query_attention_mask`, hidden states are those of the queries at the targets;
    else those of the content, as in fine-tuning. Queries start as `start`, or, if None, as the
    masked inputs at their positions (MPNet). `memory` is the number of positions of the preceding
    text retained as in Transformer-XL: inputs of each layer, visible to all positions; None carries
    nothing. Inputs (B, T), hidden (B, T, W); cost O((T + M) T W + (T + M) W²) per layer, for M
    queries.

    In decoding, `step` adds content and `query_next` queries the next position. After every
    `segment_length` positions all but the memory is dropped, as in segment-wise encoding.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (
        CausalMask,
        FullMask,
        NoContextMask,
        ExplicitMask,
    )

    def __init__(
        self,
        embedding: InputEmbedding,
        stack: Stack,
        *,
        width: int,
        start: QueryVector | None = None,
        memory: int | None = None,
        segment_length: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.width = width
        self.start = start
        self.memory = memory
        self.segment_length = segment_length
        self.memory_length = memory if segment_length else None
        self.max_positions = None if segment_length else embedding.max_positions

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view; `state` is the memory of the preceding text, if any."""
        assert state is None or isinstance(state, TensorState)
        return self._encode(view, state)

    def _encode(
        self, view: View, memory: TensorState | None, record: dict[str, Capture] | None = None
    ) -> HiddenStates:
        targets = (
            None
            if view.query_attention_mask is None
            else PositionSubset.from_mask(prediction_mask(view))
        )
        context = self._context(view, targets, memory)
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        time = values.shape[1]
        if targets is not None:
            # Both streams attend to the same keys, so they pass through a layer concatenated.
            values = torch.cat([values, self._initial_queries(values, targets)], 1)
        if record is not None:
            context = context.with_captures(record)
        segment = SegmentInputs(memory, time)
        values = self.stack(values, context, content=segment.with_memory)
        hidden = values if targets is None else targets.scatter_back(values[:, time:], time)
        state = self._update_memory(view, segment.layer_inputs, memory)
        return HiddenStates(values=hidden, state=state)

    def _initial_queries(self, content: Tensor, targets: PositionSubset) -> Tensor:
        """(B, M, W) initial queries."""
        if self.start is None:
            return targets.gather(content)
        vectors: Tensor = self.start(*targets.positions.shape)
        return vectors

    # Attention mask -----------------------------------------------------------------------------

    def _context(
        self, view: View, targets: PositionSubset | None, memory: TensorState | None
    ) -> LayerContext:
        """Queries: content, then query stream. Keys: memory, then content."""
        positions = position_ids(view)
        mask, queries, keys = _mask(view, targets, memory), positions, positions
        query_segments = key_segments = view.segments
        if targets is not None:
            queries = torch.cat(
                [queries.expand(len(targets.positions), -1), targets.gather_entries(queries)], 1
            )
            if query_segments is not None:
                target_segments = targets.gather_entries(query_segments)
                query_segments = torch.cat([query_segments, target_segments], 1)
        if memory is not None:
            past = memory["positions"]
            keys = torch.cat([past, keys.expand(len(past), -1)], 1)
            if key_segments is not None:
                # The published code assigns the whole memory to the first segment.
                key_segments = torch.cat([torch.zeros_like(past), key_segments], 1)
        return LayerContext(
            mask=mask,
            query_positions=queries,
            key_positions=keys,
            query_segments=query_segments,
            key_segments=key_segments,
        )

    # Segment recurrence -------------------------------------------------------------------------

    def _update_memory(
        self, view: View, layer_inputs: dict[str, Tensor], memory: TensorState | None
    ) -> TensorState | None:
        """The last `memory` positions before the last one, with which the next segment begins.

        `positions` counts back from there: -1 is the position before it; 0 marks empty entries.
        """
        if self.memory is None:
            return None
        step = (view.lengths - 1).clamp(min=0)[:, None]
        return extend_memory(memory, layer_inputs, view, step=step, max_length=self.memory)

    # Token by token -----------------------------------------------------------------------------

    def initial_state(self, rows: int) -> TwoStreamCache:
        layers = self.stack.initial_states(rows)
        device = next(self.parameters()).device
        empty = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return TwoStreamCache(layers, empty, empty)

    def step(self, state: State, tokens: Tensor, segments: Tensor) -> TwoStreamCache:
        """The state after one more content token in each row; both are (B,)."""
        assert isinstance(state, TwoStreamCache)
        if self.segment_length and state.count and state.count % self.segment_length == 0:
            state = _truncated(state, self.memory or 0)
        position = torch.full_like(tokens, state.count)[:, None]
        positions = torch.cat([state.positions, position], 1)
        key_segments = torch.cat([state.segments, segments[:, None]], 1)
        context = LayerContext(
            query_positions=position,
            key_positions=positions,
            query_segments=segments[:, None],
            key_segments=key_segments,
        )
        values = self.embedding(tokens[:, None], position, segments[:, None])
        _, layers = self.stack.step(values, context, state.layers)
        return TwoStreamCache(layers, positions, key_segments, state.count + 1)

    def query_next(self, state: State, segments: Tensor) -> Tensor:
        """(B, W) the query at the next position, of the given segment (B,)."""
        assert isinstance(state, TwoStreamCache)
        assert self.start is not None, "queries that start as inputs have none at the next position"
        position = torch.full_like(segments, state.count)[:, None]
        context = LayerContext(
            query_positions=position,
            key_positions=state.positions,
            query_segments=segments[:, None],
            key_segments=state.segments,
        )
        return self.stack.query(self.start(len(segments), 1), context, state.layers)[:, 0]

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention, its sublayers' outputs and its hidden states, by stream."""
        record: dict[str, Capture] = {}
        self._encode(view, None, record)
        if view.query_attention_mask is None:
            return record
        return _by_stream(
            record, view.inputs.shape[1], PositionSubset.from_mask(prediction_mask(view))
        )


def _mask(view: View, targets: PositionSubset | None, memory: TensorState | None) -> Tensor | None:
    """(B, 1, T + M, past + T); None where everything is visible."""
    time = view.inputs.shape[1]
    if targets is None and memory is None and not isinstance(view.attention_mask, CausalMask):
        return attention_mask_tensor(view.attention_mask, view.lengths, time)[0]
    mask = view.attention_mask.mask(view.lengths, time)
    if targets is not None:
        assert view.query_attention_mask is not None
        queries = view.query_attention_mask.mask(view.lengths, time)
        mask = torch.cat([mask, targets.gather(queries)], 1)
    if memory is not None:
        past = (memory["positions"] < 0)[:, None].expand(-1, mask.shape[1], -1)
        mask = torch.cat([past, mask], 2)
    return mask[:, None]


def _truncated(state: TwoStreamCache, memory: int) -> TwoStreamCache:
    """The last positions as a memory, assigned to the first segment."""
    start = max(0, state.positions.shape[1] - memory)
    segments = torch.zeros_like(state.segments[:, start:])
    layers = drop_oldest(state.layers, start)
    return TwoStreamCache(layers, state.positions[:, start:], segments, state.count)


def _by_stream(
    record: dict[str, Capture], time: int, targets: PositionSubset
) -> dict[str, Capture]:
    """Captures split by stream; the query stream's are zero where there is no target."""
    captures = {}
    for name, capture in record.items():
        axis = capture.axes.index("time")
        streams = capture.values.movedim(axis, 1)
        content, queries = streams[:, :time], streams[:, time:]
        dense_queries = targets.scatter_back(queries.flatten(2), time).view_as(content)
        captures[name] = replace(capture, values=content.movedim(1, axis))
        captures[f"query {name}"] = replace(capture, values=dense_queries.movedim(1, axis))
    return captures
