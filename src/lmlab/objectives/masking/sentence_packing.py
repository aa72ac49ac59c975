"""Sequence packing: texts of a batch split into pairs, or several packed into one input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lmlab.core.batch import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class RepackedBatch:
    """A rearranged batch, with the origin of each of its tokens in the clean one."""

    batch: Batch
    """The input: B' sequences of at most T' tokens."""
    rows: Tensor
    """(B', T') the clean row that each position comes from."""
    positions: Tensor
    """(B', T') its position there, -1 at inserted separators and padding."""
    segments: Tensor | None = None
    """(B', T') 0 up to the separator and 1 after it, for pairs."""
    labels: Tensor | None = None
    """(B',) the label of a pair, NO_TARGET where a text was too short to be split."""

    def take(self, values: Tensor, *, fill: Tensor | int) -> Tensor:
        """(B', T') clean values (B, T) rearranged, with `fill` at positions without an origin."""
        taken = values[self.rows, self.positions.clamp(min=0)]
        return torch.where(self.positions >= 0, taken, torch.as_tensor(fill).to(taken))


@dataclass(frozen=True, kw_only=True)
class FullSentences:
    """FULL-SENTENCES packing: <s> w … </s> w … </s>, as many texts as fit (Liu et al. 2019).

    Texts keep their order in the batch; one that does not fit begins the next input, so none is
    cut. Attention crosses text boundaries, as in RoBERTa.
    """

    length: int
    """Maximum tokens per input."""
    pad: int = 0

    def pack(self, batch: Batch, *, generator: torch.Generator | None = None) -> RepackedBatch:
        """Pack the batch in order; nothing is sampled."""
        device, lengths = batch.tokens.device, batch.lengths.tolist()
        rows, places = [], []
        for together in self._together(lengths):
            # <s> once, at the front; later texts without theirs.
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
