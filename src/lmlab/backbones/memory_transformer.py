"""Transformer encoder with memory layers (entity, fact, knowledge base) between its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from lmlab.backbones.transformer import Transformer, full_attention_context, position_ids
from lmlab.core.attention_mask import ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.entity_memory import HiddenMemory, MemoryOutput
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.stack import Stack


class MemoryTransformer(Transformer):
    """Transformer encoder with memory layers: h^l = memory_l(block_l(h^{l-1})); no stepping.

    `memories` maps a layer's number, from 1, to the memory after it; 0 is the embedding. Their
    outputs are in `HiddenStates.recalled` under the same number; mentions that one detects are used
    by the memories after it. A memory after a disabled layer stays active.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask, NoContextMask, ExplicitMask)

    def __init__(
        self,
        embedding: InputEmbedding,
        stack: Stack,
        memories: Mapping[int, HiddenMemory],
        *,
        width: int,
    ) -> None:
        super().__init__(embedding, stack, width=width)
        self.memories = nn.ModuleDict({str(layer): memory for layer, memory in memories.items()})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        assert state is None, "a memory between layers needs whole texts; no stepping"
        return self._recall(view, None)

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        # Memories use mentions anywhere in the text, so no layer can be restricted to positions.
        return Backbone.hidden_at(self, view, mask)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention, its sublayers' outputs and its hidden states."""
        record: dict[str, Capture] = {}
        self._recall(view, record)
        return record

    def _recall(self, view: View, record: dict[str, Capture] | None) -> HiddenStates:
        context = full_attention_context(view, record)
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        recall = _Recall(self.memories, view)
        values = self.stack(values, context, after_layer=recall.after_layer)
        return HiddenStates(values=values, memory_outputs=recall.outputs)


class _Recall:
    """One pass through the memories: their outputs so far, and the view with detected mentions."""

    def __init__(self, memories: nn.ModuleDict, view: View) -> None:
        self.memories = memories
        self.view = view
        self.outputs: dict[int, dict[str, Tensor]] = {}

    def after_layer(self, layer: int, values: Tensor) -> Tensor:
        """(B, T, W) the hidden states after the layer's memory, if it has one."""
        if str(layer) not in self.memories:
            return values
        spans = self.view.memory_spans.get(layer, self.view.spans)
        output: MemoryOutput = self.memories[str(layer)](values, replace(self.view, spans=spans))
        self.outputs[layer] = output.outputs
        if output.spans is not None:
            self.view = replace(self.view, spans=output.spans)
        return output.values
