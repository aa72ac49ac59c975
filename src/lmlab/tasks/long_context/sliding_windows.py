"""Plain ways to read a text that is longer than a system's window: cut, slide, pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.tasks.finetuned_systems import (
    TaskHeadModel,
    encoder_width,
)
from lmlab.tasks.input_pipeline import (
    EncodedSplit,
    InputPipeline,
    Row,
    TaskAnswer,
    head_scores,
    spans_read,
)
from lmlab.tasks.long_context.blocks import (
    TextBlock,
    block_length_with_end,
    concatenate_blocks,
    query_length,
)
from lmlab.tasks.prediction import predict_rows
from lmlab.tasks.span_extraction import (
    SpanExtraction,
    best_span,
)
from lmlab.tasks.tagging import (
    OUTSIDE_TAG,
    Tagging,
    first_tokens,
)
from lmlab.tasks.task import ANSWER_TRUNCATED_LABEL, EncodedExample

HEAD_SHARE = 0.25
"""Of head and tail, what the head gets: 128 of 510 tokens did best in Sun et al. 2019."""
NO_ANSWER_POSITION = 0
"""Where a window without the answer points: at <s>."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truncation(InputPipeline):
    """One stretch of the text, or two, that fit beside the question.

    Rows whose answer is cut away teach nothing and are left out of the training; those of other
    splits stay, and are answered wrongly.
    """

    def parts(self, text: TextBlock, room: int) -> list[TextBlock]:
        """What is read of a text that is longer than `room`."""
        raise TypeError(f"{type(self).__name__} does not say what it cuts")

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        encoded = [self._encode(row) for row in rows]
        kept = [
            i
            for i, each in enumerate(encoded)
            if not (training and ANSWER_TRUNCATED_LABEL in each.labels)
        ]
        return EncodedSplit(
            rows=[rows[index] for index in kept],
            encoded=[encoded[index] for index in kept],
            dropped=len(rows) - len(kept),
            cut=sum(encoded[index].cut for index in kept),
        )

    def _encode(self, row: Row) -> EncodedExample:
        text, query = self.text(row), self.query(row)
        end = block_length_with_end(text, self.vocabulary) - len(text.tokens)
        room = self.longest - query_length(query, self.vocabulary) - end
        cut = len(text.tokens) > room
        parts = self.parts(text, room) if cut else [text]
        read = concatenate_blocks(query, parts, self.vocabulary)
        return replace(self.with_labels(row, read), cut=cut)


class HeadTruncation(Truncation):
    """The beginning."""

    name: ClassVar[str] = "head"
    told: ClassVar[str] = "the beginning"

    def parts(self, text: TextBlock, room: int) -> list[TextBlock]:
        return [text.part(0, room)]


class TailTruncation(Truncation):
    """The end."""

    name: ClassVar[str] = "tail"
    told: ClassVar[str] = "the end"

    def parts(self, text: TextBlock, room: int) -> list[TextBlock]:
        return [text.part(len(text.tokens) - room, len(text.tokens))]


class HeadTailTruncation(Truncation):
    """A quarter from the beginning, the rest from the end (Sun et al. 2019), a symbol between."""

    name: ClassVar[str] = "head-tail"
    told: ClassVar[str] = "some of both"

    def parts(self, text: TextBlock, room: int) -> list[TextBlock]:
        first = int(room * HEAD_SHARE)
        last = room - first - 1
        return [text.part(0, first), text.part(len(text.tokens) - last, len(text.tokens))]


@dataclass(frozen=True, kw_only=True, eq=False)
class SlidingWindows(InputPipeline):
    """All of the text in overlapping windows, each with the question, each trained by itself.

    span: a window without the answer points at <s>; of all windows the span with the greatest score
    above that of <s> answers (Alberti et al. 2019). classify: the mean of the windows'
    probabilities. tag: a word is told by the window in which it is furthest from both ends.
    """

    name: ClassVar[str] = "windows"
    told: ClassVar[str] = "all, in sliding windows that are read one by one"

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        encoded: list[EncodedExample] = []
        owners: list[int] = []
        for number, row in enumerate(rows):
            windows = [self._told(self.with_labels(row, window)) for window in self.windows(row)]
            encoded += windows
            owners += [number] * len(windows)
        return EncodedSplit(rows=list(rows), encoded=encoded, dropped=0, owners=owners)

    def windows(self, row: Row) -> list[EncodedExample]:
        """Windows of a row, without labels."""
        text, query = self.text(row), self.query(row)
        end = block_length_with_end(text, self.vocabulary) - len(text.tokens)
        room = self.longest - query_length(query, self.vocabulary) - end
        stride = max(1, room - int(room * self.settings.overlap))
        last = max(len(text.tokens) - room, 0)
        starts = [*range(0, last, stride), last]
        return [
            concatenate_blocks(query, [text.part(low, low + room)], self.vocabulary)
            for low in starts
        ]

    def _told(self, read: EncodedExample) -> EncodedExample:
        return replace(
            read,
            labels=[
                NO_ANSWER_POSITION if label == ANSWER_TRUNCATED_LABEL else label
                for label in read.labels
            ],
        )

    def answer(self, system: Any, prepared: EncodedSplit) -> list[TaskAnswer]:
        scores = head_scores(system, prepared.encoded)
        mine: list[list[int]] = [[] for _ in prepared.rows]
        for index, owner in enumerate(prepared.owners):
            mine[owner].append(index)
        return [
            self._combined(row, [prepared.encoded[i] for i in own], [scores[i] for i in own])
            for row, own in zip(prepared.rows, mine, strict=True)
        ]

    def _combined(self, row: Row, read: list[EncodedExample], scores: list[Tensor]) -> TaskAnswer:
        if isinstance(self.task, SpanExtraction):
            answer: Any = best_span_of_windows(str(row["text"]), read, scores)
        elif isinstance(self.task, Tagging):
            answer = tags_of_windows([str(word) for word in row["words"]], read, scores, self.task)
        else:
            mean = torch.stack(scores).softmax(-1).mean(0)
            answer = self.task.labels[int(mean.argmax())]
        return TaskAnswer(answer=answer, seen=spans_read(read))


def best_span_of_windows(
    text: str, read: Sequence[EncodedExample], scores: Sequence[Tensor]
) -> str:
    """The words of the span whose score is greatest above that of its window's <s>."""
    best, answer = float("-inf"), ""
    for window, ends in zip(read, scores, strict=True):
        first, last = best_span(ends, window)
        score = float(ends[first, 0] + ends[last, 1] - ends[NO_ANSWER_POSITION].sum())
        if score > best:
            best, answer = score, text[window.spans[first][0] : window.spans[last][1]]
    return answer


def tags_of_windows(
    words: Sequence[str], read: Sequence[EncodedExample], scores: Sequence[Tensor], task: Tagging
) -> list[str]:
    """The tag of each word in the window where it is furthest from both ends."""
    found, depth = [OUTSIDE_TAG] * len(words), [-1] * len(words)
    for window, each in zip(read, scores, strict=True):
        best = each.argmax(-1).tolist()
        for word, place in enumerate(first_tokens(words, window)):
            if place is None:
                continue
            inside = min(place, len(window.tokens) - 1 - place)
            if inside > depth[word]:
                depth[word], found[word] = inside, task.labels[best[place]]
    return found


class WindowPooling(SlidingWindows):
    """Windows side by side, whose vectors become one by their mean or maximum; classify.

    The last one reaches back to be full.
    """

    name: ClassVar[str] = "pooling"
    told: ClassVar[str] = "all, in chunks whose vectors become one"

    def build(self, base: System, *, frozen: bool) -> System:
        if self.task.needs_tokens:
            raise UserError(
                f"pooling makes one vector of a text, and {self.task.name} asks for each token; "
                "take --long windows."
            )
        if self.vocabulary.start is None:
            raise UserError("pooling needs a system whose texts begin with a start symbol.")
        width = encoder_width(base, self.task)
        return WindowPoolingClassifier(
            base, self.task, width=width, frozen=frozen, pool=self.settings.pool
        )

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        apart = replace(self, settings=replace(self.settings, overlap=0.0))
        encoded = []
        for row in rows:
            windows = SlidingWindows.windows(apart, row)
            tokens = [token for window in windows for token in window.tokens]
            spans = [span for window in windows for span in window.spans]
            read = EncodedExample(tokens=tokens, labels=[], spans=spans)
            encoded.append(self.with_labels(row, read))
        return EncodedSplit(rows=list(rows), encoded=encoded, dropped=0)

    def answer(self, system: Any, prepared: EncodedSplit) -> list[TaskAnswer]:
        found = predict_rows(system, self.task, self.tokenizer, prepared.rows, prepared.encoded)
        return [
            TaskAnswer(answer=answer, seen=spans_read([read]))
            for answer, read in zip(found, prepared.encoded, strict=True)
        ]


class WindowPoolingClassifier(TaskHeadModel):
    """p(label | text) = softmax(W pool_i(h_i) + b), h_i the vector of the i-th window.

    A row of a batch is all windows of a text one after another, each beginning with <s>.
    """

    def __init__(self, *args: Any, pool: str, **words: Any) -> None:
        super().__init__(*args, **words)
        self.pool = pool
        self.window = None

    def scores(self, batch: Batch) -> Tensor:
        windows, owners = split_into_windows(
            batch, int(self.vocabulary.opening), self.vocabulary.pad
        )
        vectors: Tensor = self.base.encode(windows)  # type: ignore[operator]
        pooled = vectors.new_zeros(len(batch), vectors.shape[-1]).scatter_reduce(
            0,
            owners[:, None].expand_as(vectors),
            vectors,
            "mean" if self.pool == "mean" else "amax",
            include_self=False,
        )
        scored: Tensor = self.head(self.dropout(pooled))
        return scored


def split_into_windows(batch: Batch, start: int, pad: int) -> tuple[Batch, Tensor]:
    """Rows cut before each start symbol, as rows of their own, and the row that each is of."""
    pieces: list[list[int]] = []
    owners: list[int] = []
    for row, (tokens, length) in enumerate(
        zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    ):
        for token in tokens[:length]:
            if token == start:
                pieces.append([])
                owners.append(row)
            pieces[-1].append(token)
    device = batch.tokens.device
    return Batch.collate(pieces, pad).to(device), torch.tensor(owners, device=device)


WINDOW_STRATEGIES: Mapping[str, type[InputPipeline]] = {
    way.name: way
    for way in (HeadTruncation, TailTruncation, HeadTailTruncation, SlidingWindows, WindowPooling)
}
