"""Star attention (Star-Transformer): words attend to neighbours and a relay, the relay to words."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.capture import UNIT_INTERVAL
from lmlab.layers.attention import MultiHeadAttention, zero_disabled_heads
from lmlab.layers.block import SublayerConnection
from lmlab.layers.sequence_mixer import LayerContext, SequenceMixer, unpadded


class RingAttention(nn.Module):
    """Ring attention h'_i = MultiAtt(h_i, [h_{i-r} … h_{i+r}; e_i; s]) (Guo et al. 2019; r = 1).

    The last unpadded word is a neighbour of the first; in texts of fewer than 2r + 1 words some
    neighbours repeat. Nodes (B, 2T + 1, W): the words h, their inputs e, and the relay s. Cost
    O(T · r · W + T · W²): linear in T.
    """

    def __init__(self, attention: MultiHeadAttention, *, radius: int = 1) -> None:
        super().__init__()
        self.attention = attention
        self.neighbour_radius = radius

    def forward(self, nodes: Tensor, lengths: Tensor, context: LayerContext) -> Tensor:
        """(B, T, W) the attention output of each word."""
        part, rows, time = self.attention, len(nodes), nodes.shape[1] // 2
        keys, value_vectors = part.keys_values(nodes, context.key_positions)
        slots = ring_slots(lengths, time, self.neighbour_radius)
        row = torch.arange(rows, device=nodes.device)[:, None, None]
        # (B, T, C, H, D) to (B, T, H, C, D): keys and values in the C slots of each word.
        local = [
            vectors.transpose(1, 2)[row, slots].transpose(2, 3) for vectors in (keys, value_vectors)
        ]
        queries = part.queries(nodes[:, :time]).transpose(1, 2)[..., None, :]
        scores = queries @ local[0].transpose(-1, -2) * part.scores.scale
        weights = torch.softmax(scores, -1)
        context.capture(
            "ring attention",
            weights.squeeze(3).transpose(1, 2),
            ("batch", "head", "time", "slot"),
            "Attention weights of each word over its neighbours from left to right, its own "
            "embedding and the relay.",
            {"slot": slot_names(self.neighbour_radius)},
            sums_to_one="slot",
        )
        mean = (F.dropout(weights, part.dropout, self.training) @ local[1]).squeeze(3)
        if context.disabled_heads:
            by_head = zero_disabled_heads(mean.transpose(1, 2), context.disabled_heads)
            mean = by_head.transpose(1, 2)
        return part.output(mean.flatten(2))


def ring_slots(lengths: Tensor, time: int, radius: int) -> Tensor:
    """(B, T, 2·radius + 3) indices of each word's slots in [words; inputs; relay]."""
    positions = torch.arange(time, device=lengths.device)
    steps = torch.arange(-radius, radius + 1, device=lengths.device)
    neighbours = (positions[:, None] + steps) % lengths.clamp(min=1)[:, None, None]
    extra = torch.stack([time + positions, torch.full_like(positions, 2 * time)], dim=-1)
    return torch.cat([neighbours, extra.expand(len(lengths), -1, -1)], dim=-1)


def slot_names(radius: int) -> tuple[str, ...]:
    """The names of a word's slots."""
    steps = range(1, radius + 1)
    before, behind = [f"{n} before" for n in reversed(steps)], [f"{n} behind" for n in steps]
    return (*before, "itself", *behind, "its input", "the relay")


class RelayAttention(nn.Module):
    """Relay attention s' = MultiAtt(s, [s; h_1 … h_T]) over itself and all words, O(T · W²)."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, relay: Tensor, values: Tensor, context: LayerContext) -> Tensor:
        """(B, 1, W); the context's mask says which of [s; h] are unpadded."""
        inner = context if context.record is None else context.with_captures({})
        output: Tensor = self.attention(relay, inner, source=torch.cat([relay, values], dim=1))
        for capture in (inner.record or {}).values():
            # A single query, the relay, which is no word; its attention to itself is left out.
            caption = "Attention weights of the relay over the words; the rest is on itself."
            axes = ("batch", "head", "source")
            values = capture.values[:, :, 0, 1:]
            context.capture("relay attention", values, axes, caption, bounds=UNIT_INTERVAL)
        return output


class StarAttention(SequenceMixer):
    """A star's update of its words, then of its relay (Guo et al. 2019).

        h ← connection(ring(h, e, s)),  s ← connection(relay(s, h)) with the new words

    Values are the nodes [h; e; s], (B, 2T + 1, W): the words, and as auxiliary nodes their inputs
    and the relay, which it carries from layer to layer. Without its own relay update it leaves the
    relay as it is: no word would use the last one's.
    """

    supported_masks = (FullMask,)

    def __init__(
        self,
        ring: RingAttention,
        connection: SublayerConnection,
        *,
        relay: RelayAttention | None = None,
        relay_connection: SublayerConnection | None = None,
    ) -> None:
        super().__init__()
        self.ring = ring
        self.connection = connection
        self.relay = relay
        self.relay_connection = relay_connection
        self.heads = ring.attention.heads

    def forward(self, values: Tensor, context: LayerContext) -> Tensor:
        time = values.shape[1] // 2
        words, inputs, relay = values.split([time, time, 1], 1)
        real = unpadded(words, context).expand(len(values), -1, -1, -1)
        update = self.ring(values, real[:, 0, 0].sum(-1), context)
        words = self.connection.sublayer_output(words, update)
        if self.relay is not None:
            assert self.relay_connection is not None
            itself_and_words = torch.cat([torch.ones_like(real[..., :1]), real], -1)
            update = self.relay(relay, words, replace(context, mask=itself_and_words))
            relay = self.relay_connection.sublayer_output(relay, update)
        return torch.cat([words, inputs, relay], 1)
