"""Star-Transformer sublayers: words attend to neighbours and a relay, the relay to all words."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.capture import UNIT_INTERVAL
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.attention_context import AttentionContext


class RingAttention(nn.Module):
    """Ring attention h'_i = MultiAtt(h_i, [h_{i-r} … h_{i+r}; e_i; s]) (Guo et al. 2019; r = 1).

    The last unpadded word is a neighbour of the first; in texts of fewer than 2r + 1 words some
    neighbours repeat. Values and inputs (B, T, W), relay (B, 1, W). Cost O(T · r · W + T · W²):
    linear in T.
    """

    def __init__(self, attention: MultiHeadAttention, *, radius: int = 1) -> None:
        super().__init__()
        self.attention = attention
        self.neighbour_radius = radius

    def forward(
        self,
        values: Tensor,
        inputs: Tensor,
        relay: Tensor,
        lengths: Tensor,
        scope: AttentionContext,
    ) -> Tensor:
        """(B, T, W) the attention output of each word."""
        part, (rows, time, _) = self.attention, values.shape
        source = torch.cat([values, inputs, relay], dim=1)
        keys, value_vectors = part.keys_values(source, scope.key_positions)
        slots = ring_slots(lengths, time, self.neighbour_radius)
        row = torch.arange(rows, device=values.device)[:, None, None]
        # (B, T, C, H, D) to (B, T, H, C, D): keys and values in the C slots of each word.
        local = [
            vectors.transpose(1, 2)[row, slots].transpose(2, 3) for vectors in (keys, value_vectors)
        ]
        queries = part.queries(values).transpose(1, 2)[..., None, :]
        scores = queries @ local[0].transpose(-1, -2) * part.scores.scale
        weights = torch.softmax(scores, -1)
        scope.capture(
            "ring attention",
            weights.squeeze(3).transpose(1, 2),
            ("batch", "head", "time", "slot"),
            "Attention weights of each word over its neighbours from left to right, its own "
            "embedding and the relay.",
            {"slot": slot_names(self.neighbour_radius)},
            sums_to_one="slot",
        )
        mean = F.dropout(weights, part.dropout, self.training) @ local[1]
        return part.output(mean.squeeze(3).flatten(2))


def ring_slots(lengths: Tensor, time: int, radius: int) -> Tensor:
    """(B, T, 2·radius + 3) indices of each word's slots in [words; embeddings; relay]."""
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

    def forward(self, relay: Tensor, values: Tensor, scope: AttentionContext) -> Tensor:
        """(B, 1, W); the context's mask says which of [s; h] are unpadded."""
        inner = scope if scope.record is None else scope.with_captures({})
        output: Tensor = self.attention(relay, inner, source=torch.cat([relay, values], dim=1))
        for capture in (inner.record or {}).values():
            # A single query, the relay, which is no word; its attention to itself is left out.
            caption = "Attention weights of the relay over the words; the rest is on itself."
            axes = ("batch", "head", "source")
            values = capture.values[:, :, 0, 1:]
            scope.capture("relay attention", values, axes, caption, bounds=UNIT_INTERVAL)
        return output
