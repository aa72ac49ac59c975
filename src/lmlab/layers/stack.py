"""Stack of blocks: layers of any sequence mixers, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn

from lmlab.layers.block import Block, BlockState, CrossAttentionSource
from lmlab.layers.block_execution import BlockRunner
from lmlab.layers.kv_cache import SourceAssignment
from lmlab.layers.position_subset import PositionSubset, UniqueInputs
from lmlab.layers.relative_positions import PositionBias
from lmlab.layers.sequence_mixer import LayerContext

LayerPass = list[Tensor]
"""The input of the first layer and the output of each, (B, T, W), in one pass of a stack."""


class Stack(BlockRunner):
    """Stack of blocks, repeated `times` times with shared parameters (ALBERT).

    Blocks may have different mixers. `bias` is added to the attention scores of all layers; `norm`
    follows the last one. Layers and heads count from 1: layers in `disabled_layers` are skipped,
    and heads in `disabled_heads` (layer, head) output zero.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        times: int = 1,
        bias: PositionBias | None = None,
        norm: nn.Module | None = None,
        disabled_layers: Iterable[int] = (),
        disabled_heads: Iterable[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.times = times
        # Looked up in every step, where a ModuleList is slow.
        self._numbered_blocks = tuple(enumerate((*blocks,) * times, 1))
        self.is_sparse = any(block.mixer.is_sparse for block in blocks)
        self.bias = bias
        self.norm = norm
        self.disabled_layers = frozenset(disabled_layers)
        self.disabled_heads = frozenset(disabled_heads)
        self._recordings: list[list[LayerPass]] = []

    @property
    def depth(self) -> int:
        """Number of layers, disabled ones included."""
        return len(self._numbered_blocks)

    def block(self, layer: int) -> Block:
        """The block of a layer, by its number from 1."""
        return self._numbered_blocks[layer - 1][1]

    def all_blocks(self) -> list[Block]:
        """The block of each layer, disabled ones included."""
        return [block for _, block in self._numbered_blocks]

    def layers(self) -> Sequence[tuple[int, Block]]:
        """The number and block of each layer that is not disabled."""
        if not self.disabled_layers:
            return self._numbered_blocks
        return [pair for pair in self._numbered_blocks if pair[0] not in self.disabled_layers]

    @property
    def supported_masks(self) -> tuple[type, ...]:
        """The kinds of `AttentionMask` that all of its mixers support."""
        supported = [block.mixer.supported_masks for block in self.all_blocks()]
        return tuple(mask for mask in supported[0] if all(mask in masks for masks in supported))

    # Passes -------------------------------------------------------------------------------------

    def forward(
        self,
        values: Tensor,
        context: LayerContext,
        *,
        source: CrossAttentionSource | None = None,
        content: Callable[[int, Tensor], Tensor | None] | None = None,
        after_layer: Callable[[int, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """(B, T, W) the output of the last layer, of a whole sequence at once.

        `content` gives, for a layer's number and input, the keys and values that it attends to
        instead of its input. `after_layer` is applied to the output of each layer, disabled ones
        included; 0 is the input of the first.
        """
        context = self.biased(context)
        if after_layer is not None:
            values = after_layer(0, values)
        layer_pass = self._new_pass(values, context)
        for layer, block in self._numbered_blocks:
            enabled, layer_context = layer not in self.disabled_layers, context
            if enabled:
                layer_context = self.layer_context(context, layer)
                keyed = None if content is None else content(layer, values)
                values = self.execution.run(
                    block, values, layer_context, content=keyed, source=source
                )
            if after_layer is not None:
                values = after_layer(layer, values)
            if enabled:
                capture_hidden(layer_context, values)
                if layer_pass is not None:
                    layer_pass.append(_positions_only(values, context))
        return self.finish(values)

    def at_positions(
        self,
        values: Tensor,
        context: LayerContext,
        targets: PositionSubset,
        *,
        unique: UniqueInputs | None = None,
    ) -> Tensor:
        """(B, M, W) the output at some positions; the last layer computes only these.

        With `unique`, `values` are the unique inputs (1, U, W), projected once by the first layer.
        All mixers must be attention.
        """
        context, projected, run = self.biased(context), None, self.execution.run
        *lower_layers, (last, last_block) = self.layers()
        if unique is not None:
            if lower_layers:
                projected = unique.expand(run(lower_layers[0][1].project, values))
            values = unique.expand(values)
        for layer, block in lower_layers:
            values = run(block, values, self.layer_context(context, layer), projected=projected)
            projected = None
        layer_context = self.layer_context(context.at_positions(targets.positions), last)
        queries = targets.gather(values)
        return self.finish(run(last_block, queries, layer_context, content=values))

    def step(
        self,
        values: Tensor,
        context: LayerContext,
        states: Sequence[BlockState],
        *,
        source_context: LayerContext | None = None,
    ) -> tuple[Tensor, tuple[BlockState, ...]]:
        """The output for new positions, and the states after them."""
        context, after = self.biased(context), []
        layer_pass = self._new_pass(values, context)
        for state, (layer, block) in zip(states, self.layers(), strict=True):
            layer_context = self.layer_context(context, layer)
            values, updated = self.execution.run(
                block.step, values, layer_context, state, source_context
            )
            capture_hidden(layer_context, values)
            after.append(updated)
            if layer_pass is not None:
                layer_pass.append(values)
        return self.finish(values), tuple(after)

    def query(self, values: Tensor, context: LayerContext, states: Sequence[BlockState]) -> Tensor:
        """(B, new, W) queries that attend to the positions of the states and leave them unchanged.

        All mixers must be attention.
        """
        context = self.biased(context)
        for state, (layer, block) in zip(states, self.layers(), strict=True):
            layer_context = self.layer_context(context, layer)
            values = self.execution.run(block.query, values, layer_context, state)
        return self.finish(values)

    def initial_states(
        self, rows: int, source: CrossAttentionSource | None = None
    ) -> tuple[BlockState, ...]:
        """The state of each layer that is not disabled, before the first position."""
        like = next(self.parameters())
        assignment = None if source is None else SourceAssignment.one_to_one(rows, like.device)
        return tuple(
            block.initial_state(rows, like, source, assignment) for _, block in self.layers()
        )

    def biased(self, context: LayerContext) -> LayerContext:
        """The context with the position bias added to the mask; sparse attention adds it."""
        if self.bias is None:
            return context
        if self.is_sparse:
            return replace(context, score_bias=self.bias)
        return context.with_bias(self.bias(context.query_positions, context.key_positions))

    def layer_context(self, context: LayerContext, layer: int) -> LayerContext:
        """The context of one layer, by its number."""
        if context.record is None and not self.disabled_heads:
            return context
        disabled = {head - 1 for number, head in self.disabled_heads if number == layer}
        return context.for_layer(f"layer {layer}", frozenset(disabled))

    def finish(self, values: Tensor) -> Tensor:
        """The output of the stack: in float32, whatever the precision of the blocks."""
        values = values.float() if self.execution.lowers_precision else values
        return values if self.norm is None else self.norm(values)

    # Ablation and recording ---------------------------------------------------------------------

    @contextmanager
    def disabled(
        self, *, layers: Iterable[int] = (), heads: Iterable[tuple[int, int]] = ()
    ) -> Iterator[None]:
        """Context manager that disables layers, and heads as (layer, head); restores on exit."""
        before = self.disabled_layers, self.disabled_heads
        try:
            self.disabled_layers = before[0] | set(layers)
            self.disabled_heads = before[1] | set(heads)
            yield
        finally:
            self.disabled_layers, self.disabled_heads = before

    @contextmanager
    def running(self, blocks: Sequence[Block]) -> Iterator[None]:
        """Context manager that runs other blocks in place of its own, as many as are given."""
        before = self._numbered_blocks
        try:
            self._numbered_blocks = tuple(enumerate(blocks, 1))
            yield
        finally:
            self._numbered_blocks = before

    @contextmanager
    def recorded_passes(self, recording: list[LayerPass]) -> Iterator[None]:
        """Context manager that appends the hidden states of every pass to a list.

        Those of a pass are the input of the first layer and the output of each that is not
        disabled, (B, T, W), with their gradients; several stacks may share a list.
        """
        self._recordings.append(recording)
        try:
            yield
        finally:
            self._recordings.pop()

    def _new_pass(self, values: Tensor, context: LayerContext) -> LayerPass | None:
        """The list for the hidden states of a new pass, if any are recorded."""
        if not self._recordings:
            return None
        layer_pass = [_positions_only(values, context)]
        for recording in self._recordings:
            recording.append(layer_pass)
        return layer_pass


def capture_hidden(context: LayerContext, values: Tensor) -> None:
    """Record a layer's output, if requested."""
    if context.record is not None:
        caption = "The vector of each position after the layer, unit by unit."
        positions = _positions_only(values, context)
        context.capture("hidden", positions, ("batch", "time", "unit"), caption)


def _positions_only(values: Tensor, context: LayerContext) -> Tensor:
    """(B, T, W) the vectors of all positions, without auxiliary nodes."""
    if context.shared_prefixes is not None:
        return context.shared_prefixes.expand(values)
    return values[:, : values.shape[1] - context.auxiliary_nodes]
