"""Star-Transformer backbone: a ring of words around one relay node, linear in length."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.transformer import position_ids
from lmlab.core.attention_mask import FullMask, LayerMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.stack import Stack
from lmlab.layers.star_attention import StarAttention, ring_slots


class StarTransformer(Backbone):
    """Star-Transformer (Guo et al. 2019): h⁰ = e, s⁰ = mean(e); layers update words, then relay.

    Any two words are two steps apart, via the relay, and neighbours one. Inputs (B, T), hidden (B,
    T, W); cost O(T · W²) per layer.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, embedding: InputEmbedding, stack: Stack, *, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        mixers = [block.mixer for block in stack.all_blocks()]
        radii = [m.ring.neighbour_radius for m in mixers if isinstance(m, StarAttention)]
        self.radius = max(radii)
        self.width = width
        self.max_positions = embedding.max_positions

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        return HiddenStates(values=self.read(view))

    def read(self, view: View, *, record: dict[str, Capture] | None = None) -> Tensor:
        """(B, T, W) hidden states of all positions; internals go into `record` where given."""
        positions, lengths = position_ids(view), view.lengths
        inputs = self.embedding(view.inputs, positions, view.segments)
        real = torch.arange(inputs.shape[1], device=lengths.device) < lengths[:, None]
        relay = (inputs * real[..., None]).sum(1, keepdim=True) / lengths.clamp(min=1)[
            :, None, None
        ]
        context = LayerContext(
            mask=real[:, None, None],
            query_positions=positions,
            key_positions=positions,
            record=record,
            auxiliary_nodes=inputs.shape[1] + 1,
        )
        nodes: Tensor = self.stack(torch.cat([inputs, inputs, relay], 1), context)
        return nodes[:, : inputs.shape[1]]

    def layer_mask(self, length: int) -> LayerMask:
        """A word attends to itself, its ring neighbours and the relay; the relay to all."""
        neighbours = ring_slots(torch.tensor([length]), length, self.radius)[
            0, :, : 2 * self.radius + 1
        ]
        allowed = torch.zeros(length + 1, length + 1, dtype=torch.bool)
        allowed[:length].scatter_(1, neighbours, True)
        allowed[:, length] = allowed[length] = True
        return LayerMask(allowed=allowed, auxiliary_nodes=("the relay",))

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Attention of words and of the relay in each layer."""
        record: dict[str, Capture] = {}
        self.read(view, record=record)
        return record
