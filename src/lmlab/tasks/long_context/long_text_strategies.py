"""Strategies for long texts: truncation, sliding windows, pooling, MemRecall; their registry."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lmlab.core.errors import UserError, unknown_choice, unknown_name
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.finetuned import ANSWER_TRUNCATED_LABEL, WindowPoolingClassifier, encoder_width
from lmlab.tasks.input_pipeline import (
    UNLIMITED_LENGTH,
    EncodedSplit,
    InputPipeline,
    LongTextConfig,
    LongTextPipeline,
    SequenceAnswer,
    spans_read,
)
from lmlab.tasks.long_context.blocks import TextBlock, concatenate_blocks
from lmlab.tasks.long_context.memrecall_pipeline import MemRecallPipeline
from lmlab.tasks.sequence_task import SequenceTask, head_scores
from lmlab.tasks.task import NO_ANSWER_POSITION, EncodedExample, Row

HEAD_SHARE = 0.25
"""Share of the head in head-tail truncation: 128 of 510 tokens were best in Sun et al. 2019."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truncation(LongTextPipeline[System, EncodedSplit]):
    """Truncation: one or two segments of the text that fit with the question.

    Rows whose answer is truncated are dropped from the training split; those of other splits stay,
    and count as wrong.
    """

    @abstractmethod
    def parts(self, text: TextBlock, max_tokens: int) -> list[TextBlock]:
        """The segments of a text longer than `max_tokens` that are retained."""

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        encoded = [self._encode(row) for row in rows]
        retained = [
            i
            for i, example in enumerate(encoded)
            if not (training and ANSWER_TRUNCATED_LABEL in example.labels)
        ]
        return EncodedSplit(
            rows=[rows[index] for index in retained],
            encoded=[encoded[index] for index in retained],
            dropped=len(rows) - len(retained),
            truncated=sum(encoded[index].truncated for index in retained),
        )

    def _encode(self, row: Row) -> EncodedExample:
        text, query = self.text(row), self.query(row)
        max_tokens = self.max_text_tokens(query)
        truncated = len(text.tokens) > max_tokens
        parts = self.parts(text, max_tokens) if truncated else [text]
        example = concatenate_blocks(query, parts, self.vocabulary)
        return replace(self.with_labels(row, example), truncated=truncated)


class HeadTruncation(Truncation):
    """Head truncation: retain the beginning."""

    name: ClassVar[str] = "head"
    description: ClassVar[str] = "the beginning"

    def parts(self, text: TextBlock, max_tokens: int) -> list[TextBlock]:
        return [text.part(0, max_tokens)]


class TailTruncation(Truncation):
    """Tail truncation: retain the end."""

    name: ClassVar[str] = "tail"
    description: ClassVar[str] = "the end"

    def parts(self, text: TextBlock, max_tokens: int) -> list[TextBlock]:
        return [text.part(len(text.tokens) - max_tokens, len(text.tokens))]


class HeadTailTruncation(Truncation):
    """Head-tail truncation (Sun et al. 2019): a quarter from the start, the rest from the end."""

    name: ClassVar[str] = "head-tail"
    description: ClassVar[str] = "some of both"

    def parts(self, text: TextBlock, max_tokens: int) -> list[TextBlock]:
        head = int(max_tokens * HEAD_SHARE)
        tail = max_tokens - head - 1
        return [text.part(0, head), text.part(len(text.tokens) - tail, len(text.tokens))]


@dataclass(frozen=True, kw_only=True, eq=False)
class SlidingWindows(LongTextPipeline[System, EncodedSplit]):
    """Sliding windows over the whole text, each with the question, each a separate example.

    A window without the answer has the label of <s>; the task merges the windows' scores.
    """

    name: ClassVar[str] = "windows"
    description: ClassVar[str] = "all, in sliding windows with separate scores"

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        encoded: list[EncodedExample] = []
        row_of_input: list[int] = []
        for number, row in enumerate(rows):
            windows = [
                self._labelled(self.with_labels(row, window)) for window in self.windows(row)
            ]
            encoded += windows
            row_of_input += [number] * len(windows)
        return EncodedSplit(rows=list(rows), encoded=encoded, dropped=0, row_of_input=row_of_input)

    def windows(self, row: Row) -> list[EncodedExample]:
        """The windows of a row, without labels."""
        text, query = self.text(row), self.query(row)
        max_tokens = self.max_text_tokens(query)
        stride = max(1, max_tokens - int(max_tokens * self.settings.overlap))
        last = max(len(text.tokens) - max_tokens, 0)
        starts = [*range(0, last, stride), last]
        return [
            concatenate_blocks(query, [text.part(low, low + max_tokens)], self.vocabulary)
            for low in starts
        ]

    def _labelled(self, example: EncodedExample) -> EncodedExample:
        return replace(
            example,
            labels=[
                NO_ANSWER_POSITION if label == ANSWER_TRUNCATED_LABEL else label
                for label in example.labels
            ],
        )

    def answer(self, system: System, prepared: EncodedSplit) -> list[SequenceAnswer]:
        scores = head_scores(system, prepared.encoded)
        indices_by_row: list[list[int]] = [[] for _ in prepared.rows]
        for index, owner in enumerate(prepared.row_of_input):
            indices_by_row[owner].append(index)
        answers = []
        for row, indices in zip(prepared.rows, indices_by_row, strict=True):
            windows = [prepared.encoded[i] for i in indices]
            answer = self.task.merge_window_scores(row, windows, [scores[i] for i in indices])
            answers.append(SequenceAnswer(answer=answer, seen=spans_read(windows)))
        return answers


class WindowPooling(SlidingWindows):
    """Adjacent windows whose vectors are pooled by their mean or maximum, for classification.

    The last one overlaps with the one before, so that it is full.
    """

    name: ClassVar[str] = "pooling"
    description: ClassVar[str] = "all, in chunks whose vectors are pooled"

    def build(self, base: System, *, frozen: bool) -> System:
        if self.task.needs_tokens:
            raise UserError(
                f"--long pooling does not apply to the task {self.task.name}, which needs a vector "
                "per token; try --long windows."
            )
        if self.vocabulary.start is None:
            raise UserError("pooling needs a model whose texts begin with a start token.")
        width = encoder_width(base, per_token=False, needed_by=f"the task {self.task.name}")
        return WindowPoolingClassifier(
            base, self.task, width=width, frozen=frozen, pool=self.settings.pool
        )

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        adjacent = replace(self, settings=replace(self.settings, overlap=0.0))
        encoded = []
        for row in rows:
            windows = SlidingWindows.windows(adjacent, row)
            tokens = [token for window in windows for token in window.tokens]
            spans = [span for window in windows for span in window.spans]
            example = EncodedExample(tokens=tokens, labels=[], spans=spans)
            encoded.append(self.with_labels(row, example))
        return EncodedSplit(rows=list(rows), encoded=encoded, dropped=0)

    def answer(self, system: System, prepared: EncodedSplit) -> list[SequenceAnswer]:
        return InputPipeline.answer(self, system, prepared)


MEMRECALL = MemRecallPipeline.name
LONG_TEXT_STRATEGIES: Mapping[str, type[InputPipeline[Any, Any]]] = {
    strategy.name: strategy
    for strategy in (
        HeadTruncation,
        TailTruncation,
        HeadTailTruncation,
        SlidingWindows,
        WindowPooling,
        MemRecallPipeline,
    )
}
RELEVANCE_SUPERVISION = ("labels", "interventions")


def make_pipeline(
    strategy: str | None,
    *,
    judge: str | None,
    task: SequenceTask,
    tokenizer: Tokenizer,
    system: System,
    settings: LongTextConfig,
) -> InputPipeline[Any, Any]:
    """The input pipeline of the strategy of that name; None for plain truncation."""
    if strategy is not None:
        if strategy not in LONG_TEXT_STRATEGIES:
            choices = {name: kind.description for name, kind in LONG_TEXT_STRATEGIES.items()}
            raise unknown_choice("strategy for long texts", strategy, choices)
        task.check_options(long=strategy)
        if system.window is None:
            raise UserError("--long does not apply to a model without a window; remove it.")
    kind = InputPipeline if strategy is None else LONG_TEXT_STRATEGIES[strategy]
    return kind(
        task=task,
        tokenizer=tokenizer,
        vocabulary=system.vocabulary,
        max_length=UNLIMITED_LENGTH if system.window is None else system.window + 1,
        settings=settings,
        relevance_supervision=judge,
    )


def default_long_strategy(system: System, task: SequenceTask) -> str | None:
    """MemRecall, if the model is built for it and --long applies to the task."""
    return MEMRECALL if system.memrecall is not None and "long" in task.options else None


def relevance_supervision_of(
    strategy: str | None, judge: str | None, rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """The supervision of the judge: as given, else the rows' labels if all have them."""
    if strategy != MEMRECALL:
        if judge is not None:
            raise UserError(f"--judge applies to --long {MEMRECALL} only; remove it.")
        return None
    if judge is None:
        return (
            RELEVANCE_SUPERVISION[0]
            if all("relevant" in row for row in rows)
            else RELEVANCE_SUPERVISION[1]
        )
    if judge not in RELEVANCE_SUPERVISION:
        raise unknown_name("supervision of the judge", judge, RELEVANCE_SUPERVISION)
    return judge
