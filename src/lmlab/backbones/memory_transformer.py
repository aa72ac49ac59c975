"""Transformer encoder with memory layers (entity, fact, knowledge base) between its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from lmlab.backbones.transformer import (
    Transformer,
    TransformerStack,
    capture_hidden,
    full_attention_context,
    position_ids,
)
from lmlab.core.attention_mask import ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.entity_memory import HiddenMemory, MemoryOutput
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.input_embedding import InputEmbedding


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
        stack: TransformerStack,
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
        scope = self.stack.biased(full_attention_context(view, record))
        values = self.embedding(view.inputs, position_ids(view), view.segments)
        memory_outputs: dict[int, dict[str, Tensor]] = {}
        values, view = self._after(0, values, view, memory_outputs)
        blocks = dict(self.stack.layers())
        for layer in range(1, self.stack.depth + 1):
            layer_scope = self.stack.layer_context(scope, layer)
            if layer in blocks:
                values = blocks[layer](values, layer_scope)
            values, view = self._after(layer, values, view, memory_outputs)
            if layer in blocks:
                capture_hidden(layer_scope, values)
        return HiddenStates(values=self.stack.finish(values), memory_outputs=memory_outputs)

    def _after(
        self, layer: int, values: Tensor, view: View, memory_outputs: dict[int, dict[str, Tensor]]
    ) -> tuple[Tensor, View]:
        """The hidden states after the layer's memory, and the view with detected mentions."""
        if str(layer) not in self.memories:
            return values, view
        output: MemoryOutput = self.memories[str(layer)](values, view)
        memory_outputs[layer] = output.outputs
        return output.values, view if output.spans is None else replace(view, spans=output.spans)
