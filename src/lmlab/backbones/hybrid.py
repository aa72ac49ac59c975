"""Hybrid backbone: attention and recurrence in turns, in one stack of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from lmlab.backbones.recurrent import join_states, split_state
from lmlab.backbones.transformer import (
    Transformer,
    TransformerState,
    full_attention_context,
    position_ids,
)
from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.block import BlockState, CrossAttentionSource
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.sequence_mixer import CausalMixer, LayerContext
from lmlab.layers.stack import Stack


class HybridBackbone(Transformer):
    """Hybrid of attention and recurrence (Lieber et al. 2024; De et al. 2024): h = Stack(e(s)).

    Every mixer is a `CausalMixer`. If all have states of one size (no attention), a text of any
    length is carried from segment to segment; else the state holds a KV cache and each segment of
    training starts afresh. Inputs (B, T), hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)
    cpu_tokens_at_once: ClassVar[int | None] = None

    def __init__(self, embedding: InputEmbedding, stack: Stack, *, width: int) -> None:
        super().__init__(embedding, stack, width=width)
        mixers = [block.mixer for block in stack.all_blocks()]
        self.carries_state = all(
            isinstance(mixer, CausalMixer) and mixer.has_bounded_state for mixer in mixers
        )
        if self.carries_state:
            self.max_positions = None

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if not self.carries_state:
            return super().forward(view, state)
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        values, layers = self.stack.step(
            values, LayerContext(), self._layer_states(len(view.inputs), state)
        )
        # Tensors by name, as a checkpoint needs; without attention there are no positions to keep.
        return HiddenStates(values=values, state=join_states(self.stack, layers))

    def _layer_states(self, rows: int, state: State | None) -> Sequence[BlockState]:
        """The state of each layer, of the initial state or one after some positions."""
        if state is None:
            return self.stack.initial_states(rows)
        if isinstance(state, TransformerState):
            return state.layers
        assert isinstance(state, TensorState)
        return split_state(self.stack, state)

    def read(
        self,
        view: View,
        *,
        source: CrossAttentionSource | None = None,
        record: dict[str, Capture] | None = None,
    ) -> Tensor:
        """(B, T, W) hidden states of all positions; sharing of prefixes needs attention alone."""
        assert source is None, "a hybrid has no encoder"
        context = full_attention_context(view, record)
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        hidden: Tensor = self.stack(values, context)
        return hidden

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        # A recurrent layer needs all positions before a target.
        return Backbone.hidden_at(self, view, mask)
