"""Transformer backbone: self-attention layers under any mask, with KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.prefix_sharing import build_prefix_index
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.block import BlockState, CrossAttentionSource
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.position_subset import PositionSubset, UniqueInputs
from lmlab.layers.sequence_mixer import LayerContext, attention_mask_tensor
from lmlab.layers.stack import Stack


@dataclass(frozen=True, eq=False)
class TransformerState:
    """KV cache of a Transformer; all rows have the same number of inputs."""

    layers: tuple[BlockState, ...]
    positions: Tensor
    """(B, T) or (B, T, 2) positions of the inputs so far."""
    non_padding: Tensor
    """(B, T) bool: false where the inputs so far were padding."""
    source: Tensor | None = None
    """(B, S) bool: false at padding of the source, if there is one."""

    def select(self, rows: Tensor) -> TransformerState:
        return TransformerState(
            tuple(layer.select(rows) for layer in self.layers),
            self.positions[rows],
            self.non_padding[rows],
            None if self.source is None else self.source[rows],
        )

    def detach(self) -> TransformerState:
        layers = tuple(layer.detach() for layer in self.layers)
        return TransformerState(layers, self.positions, self.non_padding, self.source)


class Transformer(Backbone):
    """Transformer (Vaswani et al. 2017): h = Stack(e(s) + positions), causal or not by its mask.

    Inputs (B, T), hidden (B, T, W); cost O(T² W + T W²) per layer. Given a state it takes further
    inputs, which attend to all past inputs and to each other by the view's attention mask.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (
        CausalMask,
        FullMask,
        NoContextMask,
        ExplicitMask,
    )
    cpu_tokens_at_once: ClassVar[int | None] = 1024

    def __init__(self, embedding: InputEmbedding, stack: Stack, *, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.width = width
        self.max_positions = embedding.max_positions

    def initial_state(
        self, rows: int, source: CrossAttentionSource | None = None
    ) -> TransformerState:
        device = next(self.parameters()).device
        layers = self.stack.initial_states(rows, source)
        empty = torch.zeros(rows, 0, dtype=torch.long, device=device)
        source_mask = None
        if source is not None:
            mask, (size, time) = source.context.mask, source.values.shape[:2]
            all_visible = torch.ones(size, time, dtype=torch.bool, device=device)
            source_mask = all_visible if mask is None else mask[:, 0, 0]
        return TransformerState(layers, empty, empty.bool(), source_mask)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is not None:
            assert isinstance(state, TransformerState)
            return self._step(view, state)
        return HiddenStates(values=self.read(view))

    def read(
        self,
        view: View,
        *,
        source: CrossAttentionSource | None = None,
        record: dict[str, Capture] | None = None,
    ) -> Tensor:
        """(B, T, W) hidden states of all positions; internals go into `record` where given."""
        context = full_attention_context(view, record)
        no_sharing = self.training or source is not None or record is not None
        prefixes = None if no_sharing else build_prefix_index(view)
        if prefixes is not None:
            return prefixes.expand(
                self._encode_unique_prefixes(view, replace(context, shared_prefixes=prefixes))
            )
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        context.capture(
            "input",
            values,
            ("batch", "time", "unit"),
            "The vector of each position before the first layer, unit by unit.",
        )
        hidden: Tensor = self.stack(values, context, source=source)
        return hidden

    def _encode_unique_prefixes(self, view: View, context: LayerContext) -> Tensor:
        """(1, U, W) hidden states of the distinct prefixes of the rows, each computed once."""
        assert context.shared_prefixes is not None
        positions = position_ids(view).expand(view.inputs.shape)
        values = self.embedding(
            context.shared_prefixes.gather(view.inputs), context.shared_prefixes.gather(positions)
        )
        hidden: Tensor = self.stack(values, context)
        return hidden

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        """(N, W) hidden states at `mask` (B, T); the last layer computes only these.

        Inputs that are equal in many rows, as in copies of a text with one mask each, are embedded
        and projected once.
        """
        nothing = not bool(mask.any()) or not any(True for _ in self.stack.layers())
        if nothing or self.stack.is_sparse:  # a few queries would attend to all keys
            return super().hidden_at(view, mask)
        positions, targets = position_ids(view), PositionSubset.from_mask(mask)
        # Not in training: dropout must differ.
        unique = (
            None
            if self.training
            else UniqueInputs.from_inputs(view.inputs, positions, view.segments)
        )
        if unique is None:
            values = self.embedding(view.inputs, positions, view.segments)
        else:
            values = self.embedding(unique.inputs, unique.positions, unique.segments)
        hidden: Tensor = self.stack.at_positions(
            values, full_attention_context(view), targets, unique=unique
        )
        return hidden[targets.is_real]

    def _step(self, view: View, state: TransformerState) -> HiddenStates:
        rows, count = view.inputs.shape[:2]
        positions = self._next_positions(view, state)
        keys = torch.cat([state.positions.view(rows, -1, *positions.shape[2:]), positions], 1)
        real = torch.arange(count, device=positions.device) < view.lengths[:, None]
        non_padding = torch.cat([state.non_padding, real], 1)
        context = LayerContext(
            mask=_stepping_mask(view, state, non_padding),
            query_positions=positions,
            key_positions=keys,
        )
        values = self.embedding(view.inputs, positions, view.segments)
        source_context = _source_context(state, positions)
        values, layers = self.stack.step(
            values, context, state.layers, source_context=source_context
        )
        return HiddenStates(
            values=values, state=TransformerState(layers, keys, non_padding, state.source)
        )

    @staticmethod
    def _next_positions(view: View, state: TransformerState) -> Tensor:
        """(B, new) those of the view, or the next ones."""
        if view.positions is not None:
            return view.positions
        start = state.positions.shape[1]
        rows, count = view.inputs.shape[:2]
        return torch.arange(start, start + count, device=view.inputs.device).expand(rows, -1)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention, its sublayers' outputs and its hidden states."""
        record: dict[str, Capture] = {}
        self.read(view, record=record)
        return record


def position_ids(view: View) -> Tensor:
    """(B or 1, T) the view's positions; by default 0, 1, 2 …."""
    if view.positions is not None:
        return view.positions
    return torch.arange(view.inputs.shape[1], device=view.inputs.device)[None]


def full_attention_context(view: View, record: dict[str, Capture] | None = None) -> LayerContext:
    """The attention context of all positions of a view."""
    positions = position_ids(view)
    mask, causal = attention_mask_tensor(view.attention_mask, view.lengths, view.inputs.shape[1])
    return LayerContext(
        mask=mask,
        causal=causal,
        query_positions=positions,
        key_positions=positions,
        query_segments=view.segments,
        key_segments=view.segments,
        record=record,
    )


def _stepping_mask(view: View, state: TransformerState, non_padding: Tensor) -> Tensor | None:
    """(B, 1, new, past + new): past inputs without padding, and new ones by the view's mask."""
    rows, count = view.inputs.shape[:2]
    if count == 1 and bool(non_padding.all()):
        return None
    new_mask = view.attention_mask.mask(view.lengths, count)
    past = state.non_padding[:, None].expand(rows, count, -1)
    return torch.cat([past, new_mask], dim=-1)[:, None]


def _source_context(state: TransformerState, positions: Tensor) -> LayerContext | None:
    if state.source is None:
        return None
    mask = None if bool(state.source.all()) else state.source[:, None, None]
    source_positions = torch.arange(state.source.shape[1], device=positions.device)[None]
    return LayerContext(mask=mask, query_positions=positions, key_positions=source_positions)
