"""Star-Transformer backbone: a ring of words around one relay node, linear in length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.transformer import capture_hidden, position_ids
from lmlab.core.attention_mask import FullMask, LayerMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.star_attention import RelayAttention, RingAttention, ring_slots


class StarLayer(nn.Module):
    """Star-Transformer layer: ring update of the words, then the relay update.

        h ← norm(relu(ring(h, e, s))),  s ← norm(relu(relay(s, h))) with the new words

    A layer without its own relay update leaves it unchanged: no word would use the last one's.
    """

    def __init__(
        self,
        ring: RingAttention,
        norm: nn.Module,
        *,
        relay: RelayAttention | None = None,
        relay_norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.ring = ring
        self.norm = norm
        self.relay = relay
        self.relay_norm = relay_norm
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        values: Tensor,
        inputs: Tensor,
        relay: Tensor,
        lengths: Tensor,
        scope: AttentionContext,
    ) -> tuple[Tensor, Tensor]:
        """The words (B, T, W) and the relay (B, 1, W) after the layer."""
        values = self.norm(self.dropout(self.ring(values, inputs, relay, lengths, scope)).relu())
        if self.relay is not None:
            assert self.relay_norm is not None
            relay = self.relay_norm(self.dropout(self.relay(relay, values, scope)).relu())
        return values, relay


class StarTransformer(Backbone):
    """Star-Transformer (Guo et al. 2019): h⁰ = e, s⁰ = mean(e); layers update words, then relay.

    Any two words are two steps apart, via the relay, and neighbours one. Inputs (B, T), hidden (B,
    T, W); cost O(T · W²) per layer.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(
        self, embedding: InputEmbedding, layers: Sequence[StarLayer], *, width: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.reach = max(layer.ring.neighbour_radius for layer in layers)
        self.width = width

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
        itself_and_words = torch.cat([torch.ones_like(real[:, :1]), real], dim=1)
        scope = AttentionContext(
            mask=itself_and_words[:, None, None],
            query_positions=positions,
            key_positions=positions,
            record=record,
        )
        values = inputs
        for number, layer in enumerate(self.layers, start=1):
            layer_scope = replace(scope, name=f"layer {number}")
            values, relay = layer(values, inputs, relay, lengths, layer_scope)
            capture_hidden(layer_scope, values)
        return values

    def layer_mask(self, length: int) -> LayerMask:
        """A word attends to itself, its ring neighbours and the relay; the relay to all."""
        neighbours = ring_slots(torch.tensor([length]), length, self.reach)[
            0, :, : 2 * self.reach + 1
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
