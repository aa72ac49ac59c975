"""Sentence-pair tasks: next sentence prediction (NSP) and sentence order prediction (SOP)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.layers.weight_init import init_transformer_weights


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


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSegment:
    """A text segment for each of B rows."""

    rows: Tensor
    """(B,) the row of the clean batch that it is taken from."""
    first: Tensor
    """(B,) its first position there."""
    count: Tensor
    """(B,) its number of tokens."""

    def where(self, condition: Tensor, other: TextSegment) -> TextSegment:
        """This segment in rows where `condition` (B,) is true, else the other."""
        return TextSegment(
            rows=torch.where(condition, self.rows, other.rows),
            first=torch.where(condition, self.first, other.first),
            count=torch.where(condition, self.count, other.count),
        )

    def sources(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) row and position of the tokens at `offset` in it; position -1 outside."""
        outside = (offset < 0) | (offset >= self.count[:, None])
        places = (self.first[:, None] + offset).masked_fill(outside, -1)
        return self.rows[:, None].expand_as(places), places


class SentencePairTask(nn.Module):
    """Binary classification of segment pairs, half of which are corrupted.

    A text of n ≥ 2 tokens is split at a uniformly random position; shorter ones stay whole and have
    no label. Label 0 is the original text, 1 its corruption by `corrupt_pairs`. The head uses the
    hidden state of position 0: softmax(V tanh(U h_0 + u) + v) (Devlin et al. 2019).
    """

    name: ClassVar[str]
    """Name of its part of the loss."""
    question: ClassVar[str]
    answers: ClassVar[tuple[str, str]]
    """Meanings of the labels 0 and 1."""

    def __init__(self, width: int, vocabulary: Vocabulary, *, chance: float = 0.5) -> None:
        super().__init__()
        if vocabulary.end is None:
            raise UserError(
                "sentence pairs need an end token between the segments, and the tokeniser has "
                "neither </s> nor [SEP]; add one to its tokenizer.json, or use --set pairs=none."
            )
        self.separator, self.pad = vocabulary.end, vocabulary.pad
        self.corruption_rate = chance
        self.pool = nn.Linear(width, width)
        self.classify = nn.Linear(width, 2)
        init_transformer_weights(self, width)

    def explain(self, label: int) -> str:
        """A label in words; empty for a text too short to be split."""
        if label == NO_TARGET:
            return ""
        return (
            f"Predicted at the first position: {self.question} {self.answers[label]} (label "
            f"{label})."
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, 2) logits of the labels, given hidden states (B, T, W)."""
        answers: Tensor = self.classify(torch.tanh(self.pool(hidden[:, 0])))
        return answers

    def loss(self, view: View, hidden: Tensor) -> Loss:
        """Cross-entropy of the labels, each weighted by the number of MLM targets in its row.

        So the loss is a total over a count and, at the same time, the papers' mean over tokens plus
        mean over pairs.
        """
        assert view.labels is not None and view.targets is not None
        each = F.cross_entropy(self(hidden), view.labels, ignore_index=NO_TARGET, reduction="none")
        weights = (view.targets != NO_TARGET).sum(1) * (view.labels != NO_TARGET)
        return Loss((each * weights).sum(), weights.sum().to(each))

    def pack(self, batch: Batch, *, generator: torch.Generator | None = None) -> RepackedBatch:
        """Split every text that is long enough, and corrupt half of them."""
        device = batch.tokens.device
        last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None])[:, 0]
        closed = (last == self.separator) & (batch.lengths > 1)
        words = batch.lengths - 1 - closed.long()
        cuttable = words >= 2
        drawn = sample_uniform((3, len(batch)), device, generator=generator)
        cut = torch.where(cuttable, 1 + (drawn[0] * (words - 1)).long(), words)
        own, one = torch.arange(len(batch), device=device), torch.ones_like(words)
        first = TextSegment(rows=own, first=one, count=cut)
        second = TextSegment(rows=own, first=cut + 1, count=words - cut)
        changeable = cuttable & self.can_corrupt(cuttable)
        change = changeable & (drawn[1] < self.corruption_rate)
        head, tail = self.corrupt_pairs(first, second, words, cuttable, drawn[2])
        labels = change.long().masked_fill(~cuttable, NO_TARGET)
        first, second = head.where(change, first), tail.where(change, second)
        return self._joined(batch, first, second, closed, labels)

    def _joined(
        self, batch: Batch, first: TextSegment, second: TextSegment, closed: Tensor, labels: Tensor
    ) -> RepackedBatch:
        """<s> first </s> second </s>; no separator without a second segment."""
        parted = second.count > 0
        behind = (1 + first.count + parted.long())[:, None]
        lengths = behind[:, 0] + second.count + closed.long()
        place = torch.arange(int(lengths.max()), device=lengths.device)[None]
        inside = place < lengths[:, None]
        # Where each position comes from: first the segments, then <s> and the last </s>.
        rows, places = first.sources(place - 1)
        later_rows, later_places = second.sources(place - behind)
        in_second = later_places >= 0
        rows = torch.where(in_second, later_rows, rows)
        places = torch.where(in_second, later_places, places).masked_fill(place == 0, 0)
        at_end = closed[:, None] & (place == lengths[:, None] - 1)
        places = torch.where(at_end, batch.lengths[:, None] - 1, places)
        own = torch.arange(len(batch), device=rows.device)[:, None]
        arranged = RepackedBatch(
            batch=replace(batch, lengths=lengths),
            rows=torch.where(at_end | (place == 0), own, rows),
            positions=places,
            segments=(parted[:, None] & (place >= behind) & inside).long(),
            labels=labels,
        )
        blank = torch.full_like(places, self.pad).masked_fill(inside, self.separator)
        tokens = arranged.take(batch.tokens, fill=blank)
        return replace(arranged, batch=replace(arranged.batch, tokens=tokens))

    def can_corrupt(self, cuttable: Tensor) -> Tensor:
        """(B,) bool: the rows that can be corrupted."""
        return cuttable

    def corrupt_pairs(
        self,
        first: TextSegment,
        second: TextSegment,
        words: Tensor,
        cuttable: Tensor,
        drawn: Tensor,
    ) -> tuple[TextSegment, TextSegment]:
        """The two segments where the label is 1; `drawn` (B,) are numbers in [0, 1)."""
        raise TypeError(f"{type(self).__name__} does not define corrupt_pairs")


class NextSentencePrediction(SentencePairTask):
    """NSP: does the second segment follow the first, or end another text of the batch?

    Devlin et al. 2019. The other text's end is as long as the original one, where that text is long
    enough, so that length is no cue. If only one text can be split, all labels are 0.
    """

    name = "next sentence"
    question = "does the second segment follow the first?"
    answers = ("Yes", "No, it is the end of another text")

    def can_corrupt(self, cuttable: Tensor) -> Tensor:
        return cuttable & (cuttable.sum() > 1)

    def corrupt_pairs(
        self,
        first: TextSegment,
        second: TextSegment,
        words: Tensor,
        cuttable: Tensor,
        drawn: Tensor,
    ) -> tuple[TextSegment, TextSegment]:
        others = _another(cuttable, drawn)
        count = torch.minimum(second.count, words[others] - 1).clamp(min=0)
        return first, TextSegment(rows=others, first=words[others] - count + 1, count=count)


class SentenceOrderPrediction(SentencePairTask):
    """SOP: are the two segments in order, or swapped? (Lan et al. 2020, ALBERT)"""

    name = "sentence order"
    question = "are the two segments in their original order?"
    answers = ("Yes", "No, they are swapped")

    def corrupt_pairs(
        self,
        first: TextSegment,
        second: TextSegment,
        words: Tensor,
        cuttable: Tensor,
        drawn: Tensor,
    ) -> tuple[TextSegment, TextSegment]:
        return second, first


def _another(cuttable: Tensor, drawn: Tensor) -> Tensor:
    """(B,) for each row another splittable one, uniformly; itself if there is none.

    Splittable rows are numbered 0 … n-1, and a random step of 1 … n-1, modulo n, gives the other.
    """
    count = int(cuttable.sum())
    if count < 2:
        return torch.arange(len(cuttable), device=cuttable.device)
    number = cuttable.cumsum(0) - 1
    step = 1 + (drawn * (count - 1)).long().clamp(max=count - 2)
    return cuttable.nonzero()[:, 0][(number + step) % count]
