"""Texts of a batch put together otherwise: cut in two, or several in one input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lmlab.core.batch import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class RepackedBatch:
    """Another batch, told by where each of its tokens stands in the clean one."""

    batch: Batch
    """What is fed: B' sequences of at most T' tokens."""
    rows: Tensor
    """(B', T') the clean row that each place comes from."""
    positions: Tensor
    """(B', T') its place there, -1 at a separator that was put in and at padding."""
    segments: Tensor | None = None
    """(B', T') 0 up to the separator and 1 after it, where there are pairs."""
    labels: Tensor | None = None
    """(B',) the answer for a pair, NO_TARGET where a text was too short to be cut."""

    def take(self, values: Tensor, *, fill: Tensor | int) -> Tensor:
        """(B', T') of clean values (B, T), with `fill` where a place comes from none."""
        taken = values[self.rows, self.positions.clamp(min=0)]
        return torch.where(self.positions >= 0, taken, torch.as_tensor(fill).to(taken))


@dataclass(frozen=True, kw_only=True)
class FullSentences:
    """As many texts of a batch as fit, one after another: <s> w … </s> w … </s> (Liu et al. 2019).

    They are taken in the order of the batch; a text that does not fit begins the next input, so
    that none is cut. Every place sees all of an input, other texts too, as in RoBERTa.
    """

    length: int
    """Most tokens of an input."""
    pad: int = 0

    def pack(self, batch: Batch, *, generator: torch.Generator | None = None) -> RepackedBatch:
        """Nothing is drawn: the batch is put together as it came."""
        device, lengths = batch.tokens.device, batch.lengths.tolist()
        rows, places = [], []
        for together in self._together(lengths):
            # <s> once, at the front; of the others what follows it.
            spans = [(row, min(number, 1)) for number, row in enumerate(together)]
            rows += [torch.cat([torch.full((lengths[r] - low,), r) for r, low in spans])]
            places += [torch.cat([torch.arange(low, lengths[r]) for r, low in spans])]
        arranged = RepackedBatch(
            batch=replace(
                batch,
                lengths=torch.tensor([len(each) for each in places], device=device),
                tokens=batch.tokens[: len(places)],
                rows=torch.stack([each[0] for each in rows]).to(device),
                condition=None,
            ),
            rows=pad_sequence(rows, batch_first=True).to(device),
            positions=pad_sequence(places, batch_first=True, padding_value=-1).to(device),
        )
        tokens = arranged.take(batch.tokens, fill=self.pad)
        return replace(arranged, batch=replace(arranged.batch, tokens=tokens))

    def _together(self, lengths: list[int]) -> list[list[int]]:
        """The rows of each input."""
        found: list[list[int]] = []
        used = self.length
        for row, length in enumerate(lengths):
            if used + length - 1 > self.length:
                found.append([])
                used = 1
            found[-1].append(row)
            used += length - 1
        return found
