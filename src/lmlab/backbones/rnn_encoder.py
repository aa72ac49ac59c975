"""RNN encoder of sources: forward, reversed or bidirectional."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmlab.layers.recurrent_cells import (
    CellState,
    RecurrentCell,
)


class RNNEncoder(nn.Module):
    """Stacked cells over a source: hidden states of all positions, and the last states.

    `reversed_` encodes from the end (Sutskever et al. 2014). With `backwards`, one more cell per
    layer, every layer is bidirectional and concatenates its two halves (Schuster and Paliwal 1997).
    Tokens (B, S) to (B, S, W) and, for each layer, a state of W.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        forwards: Sequence[RecurrentCell],
        backwards: Sequence[RecurrentCell] = (),
        *,
        dropout: float = 0.0,
        reversed_: bool = False,
    ) -> None:
        super().__init__()
        assert not backwards or len(backwards) == len(forwards), "as many layers each way"
        self.embedding = embedding
        self.forwards = nn.ModuleList(forwards)
        self.backwards = nn.ModuleList(backwards)
        self.dropout = nn.Dropout(dropout)
        self.reversed = reversed_
        self.width = sum(cells[-1].width for cells in (forwards, backwards) if cells)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[CellState]]:
        values, last = self.embedding(tokens), []
        if self.reversed:
            values = reverse_padded(values, lengths)
        for layer in range(len(self.forwards)):
            values, state = self._layer(layer, self.dropout(values), lengths)
            last.append(state)
        return (reverse_padded(values, lengths) if self.reversed else values), last

    def _layer(self, layer: int, values: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        there = self.forwards[layer]
        assert isinstance(there, RecurrentCell)
        outputs, state = there.read(values, lengths)
        if not self.backwards:
            return outputs, state
        back = self.backwards[layer]
        assert isinstance(back, RecurrentCell)
        found, other = back.read(reverse_padded(values, lengths), lengths)
        both = tuple(torch.cat(parts, -1) for parts in zip(state, other, strict=True))
        return torch.cat([outputs, reverse_padded(found, lengths)], -1), both


def reverse_padded(values: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row (B, T, W) up to its length; padding stays in place."""
    place = torch.arange(values.shape[1], device=values.device)
    mirrored = lengths[:, None] - 1 - place
    index = torch.where(mirrored >= 0, mirrored, place)
    return values.gather(1, index[..., None].expand_as(values))
