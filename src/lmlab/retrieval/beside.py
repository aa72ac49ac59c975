"""Texts beside several documents each: their state while they are written, and what is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.state import State


@dataclass(frozen=True, eq=False)
class BesideDocuments:
    """B texts under way, each beside K documents: as many states of the writer, and weights."""

    inner: State
    """Of B · K rows, the documents of a text one after another."""
    log_weights: Tensor
    """(B, K) log p(document | question, what was written), as far as the sum asks for it."""

    def select(self, rows: Tensor) -> BesideDocuments:
        count = self.log_weights.shape[1]
        each = rows[:, None] * count + torch.arange(count, device=rows.device)
        return BesideDocuments(self.inner.select(each.flatten()), self.log_weights[rows])

    def detach(self) -> BesideDocuments:
        return BesideDocuments(self.inner.detach(), self.log_weights.detach())


def joined(first: Batch, second: Batch, pad: int) -> Batch:
    """Each row of the first, and after it that of the second without its start symbol."""
    lengths = first.lengths + second.lengths - 1
    place = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
    place = place.expand(len(lengths), -1)
    begins = first.lengths[:, None] - 1  # where the second's start symbol would stand
    earlier = first.tokens.gather(1, place.clamp(max=first.tokens.shape[1] - 1))
    later = second.tokens.gather(1, (place - begins).clamp(0, second.tokens.shape[1] - 1))
    tokens = torch.where(place <= begins, earlier, later)
    return Batch(
        tokens=tokens.masked_fill(place >= lengths[:, None], pad),
        lengths=lengths,
        rows=first.rows,
    )
