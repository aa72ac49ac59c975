"""Sentence packing (FULL-SENTENCES) and sentence-pair tasks: NSP and SOP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

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
        rows, positions = [], []
        for group in self._group_rows(lengths):
            # <s> once, at the front; later texts without theirs.
            spans = [(row, min(number, 1)) for number, row in enumerate(group)]
            rows += [torch.cat([torch.full((lengths[r] - low,), r) for r, low in spans])]
            positions += [torch.cat([torch.arange(low, lengths[r]) for r, low in spans])]
        repacked = RepackedBatch(
            batch=replace(
                batch,
                lengths=torch.tensor([len(values) for values in positions], device=device),
                tokens=batch.tokens[: len(positions)],
                rows=torch.stack([values[0] for values in rows]).to(device),
                condition=None,
            ),
            rows=pad_sequence(rows, batch_first=True).to(device),
            positions=pad_sequence(positions, batch_first=True, padding_value=-1).to(device),
        )
        tokens = repacked.take(batch.tokens, fill=self.pad)
        return replace(repacked, batch=replace(repacked.batch, tokens=tokens))

    def _group_rows(self, lengths: list[int]) -> list[list[int]]:
        """The rows of each input."""
        groups: list[list[int]] = []
        used = self.length
        for row, length in enumerate(lengths):
            if used + length - 1 > self.length:
                groups.append([])
                used = 1
            groups[-1].append(row)
            used += length - 1
        return groups


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
        positions = (self.first[:, None] + offset).masked_fill(outside, -1)
        return self.rows[:, None].expand_as(positions), positions


class SplitTexts(NamedTuple):
    """Texts split into two segments, their (B,) numbers of words, and whether they can be split."""

    first: TextSegment
    second: TextSegment
    words: Tensor
    cuttable: Tensor


class SegmentPairs(ABC):
    """Texts as pairs of segments, `<s> A </s> B </s>`, some of which are corrupted.

    A text of n ≥ 2 tokens is split at a uniformly random position; shorter ones stay whole and have
    no label. Label 0 is the original text, 1 its corruption by `corrupt_pairs`.
    """

    corruption_rate: float
    separator: int
    pad: int

    def set_up(self, vocabulary: Vocabulary, corruption_rate: float, *, instead: str) -> None:
        """`instead`: the setting that does without pairs."""
        if vocabulary.end is None:
            raise UserError(
                "sentence pairs need an end token between the segments, and the tokenizer has "
                f"neither </s> nor [SEP]; add one to its tokenizer.json, or use --set {instead}."
            )
        self.separator, self.pad = vocabulary.end, vocabulary.pad
        self.corruption_rate = corruption_rate

    def pack(self, batch: Batch, *, generator: torch.Generator | None = None) -> RepackedBatch:
        """Split every text that is long enough, and corrupt half of them."""
        device = batch.tokens.device
        last = batch.tokens.gather(1, (batch.lengths - 1).clamp(min=0)[:, None])[:, 0]
        closed = (last == self.separator) & (batch.lengths > 1)
        words = batch.lengths - 1 - closed.long()
        cuttable = words >= 2
        uniforms = sample_uniform((3, len(batch)), device, generator=generator)
        cut = torch.where(cuttable, 1 + (uniforms[0] * (words - 1)).long(), words)
        own, one = torch.arange(len(batch), device=device), torch.ones_like(words)
        first = TextSegment(rows=own, first=one, count=cut)
        second = TextSegment(rows=own, first=cut + 1, count=words - cut)
        changeable = cuttable & self.can_corrupt(cuttable)
        change = changeable & (uniforms[1] < self.corruption_rate)
        head, tail = self.corrupt_pairs(SplitTexts(first, second, words, cuttable), uniforms[2])
        labels = change.long().masked_fill(~cuttable, NO_TARGET)
        first, second = head.where(change, first), tail.where(change, second)
        return self._join_pair(batch, first, second, closed, labels)

    def _join_pair(
        self, batch: Batch, first: TextSegment, second: TextSegment, closed: Tensor, labels: Tensor
    ) -> RepackedBatch:
        """<s> first </s> second </s>; no separator without a second segment."""
        has_second = second.count > 0
        second_start = (1 + first.count + has_second.long())[:, None]
        lengths = second_start[:, 0] + second.count + closed.long()
        positions = torch.arange(int(lengths.max()), device=lengths.device)[None]
        inside = positions < lengths[:, None]
        # Where each position comes from: first the segments, then <s> and the last </s>.
        rows, clean_positions = first.sources(positions - 1)
        second_rows, second_positions = second.sources(positions - second_start)
        in_second = second_positions >= 0
        rows = torch.where(in_second, second_rows, rows)
        clean_positions = torch.where(in_second, second_positions, clean_positions).masked_fill(
            positions == 0, 0
        )
        at_end = closed[:, None] & (positions == lengths[:, None] - 1)
        clean_positions = torch.where(at_end, batch.lengths[:, None] - 1, clean_positions)
        own = torch.arange(len(batch), device=rows.device)[:, None]
        repacked = RepackedBatch(
            batch=replace(batch, lengths=lengths),
            rows=torch.where(at_end | (positions == 0), own, rows),
            positions=clean_positions,
            segments=(has_second[:, None] & (positions >= second_start) & inside).long(),
            labels=labels,
        )
        blank = torch.full_like(clean_positions, self.pad).masked_fill(inside, self.separator)
        tokens = repacked.take(batch.tokens, fill=blank)
        return replace(repacked, batch=replace(repacked.batch, tokens=tokens))

    def can_corrupt(self, cuttable: Tensor) -> Tensor:
        """(B,) bool: the rows that can be corrupted."""
        return cuttable

    @abstractmethod
    def corrupt_pairs(self, split: SplitTexts, uniforms: Tensor) -> tuple[TextSegment, TextSegment]:
        """The two segments where the label is 1; `uniforms` (B,) are numbers in [0, 1)."""


class SentencePairTask(SegmentPairs, nn.Module):
    """Binary classification of segment pairs, half of which are corrupted.

    The head uses the hidden state of position 0: softmax(V tanh(U h_0 + u) + v) (Devlin et al.
    2019).
    """

    name: ClassVar[str]
    """Name of its part of the loss."""
    question: ClassVar[str]
    answers: ClassVar[tuple[str, str]]
    """Meanings of the labels 0 and 1."""

    def __init__(self, width: int, vocabulary: Vocabulary, *, corruption_rate: float = 0.5) -> None:
        super().__init__()
        self.set_up(vocabulary, corruption_rate, instead="pairs=none")
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
        logits: Tensor = self.classify(torch.tanh(self.pool(hidden[:, 0])))
        return logits

    def loss(self, view: View, hidden: Tensor) -> Loss:
        """Cross-entropy of the labels, each weighted by the number of MLM targets in its row.

        So the loss is a total over a count and, at the same time, the papers' mean over tokens plus
        mean over pairs.
        """
        assert view.labels is not None and view.targets is not None
        losses = F.cross_entropy(
            self(hidden), view.labels, ignore_index=NO_TARGET, reduction="none"
        )
        weights = (view.targets != NO_TARGET).sum(1) * (view.labels != NO_TARGET)
        return Loss((losses * weights).sum(), weights.sum().to(losses))


class EndsOfOthers(SegmentPairs):
    """Pairs whose second segment follows the first, or ends another text of the batch.

    The other text's end is as long as the original one, where that text is long enough, so that
    length is no cue. If only one text can be split, all labels are 0.
    """

    def can_corrupt(self, cuttable: Tensor) -> Tensor:
        return cuttable & (cuttable.sum() > 1)

    def corrupt_pairs(self, split: SplitTexts, uniforms: Tensor) -> tuple[TextSegment, TextSegment]:
        others = _other_rows(split.cuttable, uniforms)
        words = split.words[others]
        count = torch.minimum(split.second.count, words - 1).clamp(min=0)
        return split.first, TextSegment(rows=others, first=words - count + 1, count=count)


class TwoSegments(EndsOfOthers):
    """Two segments without a task (XLNet, Yang et al. 2019): half of them from one context."""

    def __init__(self, vocabulary: Vocabulary, *, corruption_rate: float = 0.5) -> None:
        self.set_up(vocabulary, corruption_rate, instead="two_segments=false")


class NextSentencePrediction(EndsOfOthers, SentencePairTask):
    """NSP: does the second segment follow the first, or end another text of the batch?

    Devlin et al. 2019.
    """

    name = "next sentence"
    question = "does the second segment follow the first?"
    answers = ("Yes", "No, it is the end of another text")


class SentenceOrderPrediction(SentencePairTask):
    """SOP: are the two segments in order, or swapped? (Lan et al. 2020, ALBERT)"""

    name = "sentence order"
    question = "are the two segments in their original order?"
    answers = ("Yes", "No, they are swapped")

    def corrupt_pairs(self, split: SplitTexts, uniforms: Tensor) -> tuple[TextSegment, TextSegment]:
        return split.second, split.first


def _other_rows(cuttable: Tensor, uniforms: Tensor) -> Tensor:
    """(B,) for each row another splittable one, uniformly; itself if there is none.

    Splittable rows are numbered 0 … n-1, and a random step of 1 … n-1, modulo n, gives the other.
    """
    count = int(cuttable.sum())
    if count < 2:
        return torch.arange(len(cuttable), device=cuttable.device)
    number = cuttable.cumsum(0) - 1
    step = 1 + (uniforms * (count - 1)).long().clamp(max=count - 2)
    return cuttable.nonzero()[:, 0][(number + step) % count]
