"""Two segments of text and one question about them: next sentence, or in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.objectives.masking.sentence_packing import RepackedBatch


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSegment:
    """A stretch of text for each of B rows."""

    rows: Tensor
    """(B,) the row of the clean batch that it is taken from."""
    first: Tensor
    """(B,) its first place there."""
    count: Tensor
    """(B,) its tokens."""

    def where(self, condition: Tensor, other: TextSegment) -> TextSegment:
        """This one in rows where `condition` (B,) is true, and the other in the rest."""
        return TextSegment(
            rows=torch.where(condition, self.rows, other.rows),
            first=torch.where(condition, self.first, other.first),
            count=torch.where(condition, self.count, other.count),
        )

    def sources(self, offset: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) the row and place of the tokens so far into it; -1 as place outside of it."""
        outside = (offset < 0) | (offset >= self.count[:, None])
        places = (self.first[:, None] + offset).masked_fill(outside, -1)
        return self.rows[:, None].expand_as(places), places


class SentencePairTask(nn.Module):
    """Texts in two segments, which half of the time are not as they were; a head tells which.

    A text of n ≥ 2 tokens is cut at a random place, each as likely; shorter ones stay whole and ask
    nothing. Label 0 is the text as it was, 1 what `changed` makes of it. The head reads the hidden
    state of place 0: softmax(V tanh(U h_0 + u) + v) (Devlin et al. 2019).
    """

    name: ClassVar[str]
    """Of its part of the loss."""
    question: ClassVar[str]
    answers: ClassVar[tuple[str, str]]
    """What the labels 0 and 1 mean."""

    def __init__(self, width: int, vocabulary: Vocabulary, *, chance: float = 0.5) -> None:
        super().__init__()
        if vocabulary.end is None:
            raise UserError(
                "pairs of segments need an end symbol between them, and the tokeniser has neither "
                "</s> nor [SEP]; add one to its tokenizer.json, or give --set pairs=none."
            )
        self.separator, self.pad = vocabulary.end, vocabulary.pad
        self.corruption_rate = chance
        self.pool = nn.Linear(width, width)
        self.classify = nn.Linear(width, 2)
        init_transformer_weights(self, width)

    def explain(self, label: int) -> str:
        """A label in words; nothing of a text that was too short to be cut."""
        if label == NO_TARGET:
            return ""
        return f"Asked of the first place: {self.question} {self.answers[label]} (label {label})."

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, 2) logits of both answers, given hidden states (B, T, W)."""
        answers: Tensor = self.classify(torch.tanh(self.pool(hidden[:, 0])))
        return answers

    def loss(self, view: View, hidden: Tensor) -> Loss:
        """Cross-entropy of the labels; a label weighs as many tokens as its row predicts.

        So that the whole is a total over a count, and at the same time the mean over tokens plus
        the mean over pairs that the papers minimise.
        """
        assert view.labels is not None and view.targets is not None
        each = F.cross_entropy(self(hidden), view.labels, ignore_index=NO_TARGET, reduction="none")
        weights = (view.targets != NO_TARGET).sum(1) * (view.labels != NO_TARGET)
        return Loss((each * weights).sum(), weights.sum().to(each))

    def pack(self, batch: Batch, *, generator: torch.Generator | None = None) -> RepackedBatch:
        """Cut every text that can be, and change some of them."""
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
        """<s> first </s> second </s>; no separator where there is no second."""
        parted = second.count > 0
        behind = (1 + first.count + parted.long())[:, None]
        lengths = behind[:, 0] + second.count + closed.long()
        place = torch.arange(int(lengths.max()), device=lengths.device)[None]
        inside = place < lengths[:, None]
        # Where each place comes from: first the segments, then <s> and the last </s>.
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
        """(B,) bool: the rows of which something else can be made."""
        return cuttable

    def corrupt_pairs(
        self,
        first: TextSegment,
        second: TextSegment,
        words: Tensor,
        cuttable: Tensor,
        drawn: Tensor,
    ) -> tuple[TextSegment, TextSegment]:
        """What the two segments are where the answer is 1; `drawn` (B,) are numbers in [0, 1)."""
        raise TypeError(f"{type(self).__name__} does not define changed")


class NextSentencePrediction(SentencePairTask):
    """Does the second segment follow the first, or is it the end of another text of the batch?

    NSP (Devlin et al. 2019). The other text's end is as long as the own one, where that text is
    long enough, so that length tells nothing. In a batch with one text that can be cut all follow.
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
    """Do the two segments stand in their order, or swapped? SOP (Lan et al. 2020)."""

    name = "sentence order"
    question = "do the two segments stand in their order?"
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
    """(B,) for each row another one that can be cut, all equally likely; itself if there is none.

    Those that can are numbered 0 … n-1, and a random step of 1 … n-1 leads on, round and round.
    """
    count = int(cuttable.sum())
    if count < 2:
        return torch.arange(len(cuttable), device=cuttable.device)
    number = cuttable.cumsum(0) - 1
    step = 1 + (drawn * (count - 1)).long().clamp(max=count - 2)
    return cuttable.nonzero()[:, 0][(number + step) % count]
