"""How the rows of a task are read by a system, and its answers made answers to rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import LengthBatches
from lmlab.data.collation import group_by_length
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.finetuned_systems import add_task_head
from lmlab.tasks.long_context.blocks import (
    TextBlock,
    text_as_block,
)
from lmlab.tasks.prediction import (
    TOKENS_PER_BATCH,
    predict_rows,
)
from lmlab.tasks.task import (
    ANSWER_TRUNCATED_LABEL,
    AnswerTruncated,
    EncodedExample,
    Task,
    collate_examples,
)
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader

Row = dict[str, Any]
UNLIMITED_LENGTH = 10**6
"""Tokens that a system without a window takes."""


@dataclass(frozen=True, kw_only=True)
class LongTextConfig(MemRecallConfig):
    """Settings of the ways to read texts that are longer than a system's window."""

    overlap: float = field(default=0.5, metadata={"at_least": 0, "below": 1})
    """The share of a sliding window's text that the next one has too."""
    pool: Literal["mean", "max"] = "mean"
    """How the vectors of several windows become one."""


@dataclass(frozen=True, kw_only=True)
class KeptBlock:
    """A block of a text that stayed in the working memory."""

    start: int
    end: int
    text: str
    score: float
    """The judge's, from 0 to 1."""
    asked: tuple[int, int] | None = None
    """Where words are tagged: characters [start, end) of the block that it was kept for."""

    def as_dict(self) -> dict[str, Any]:
        told = {"start": self.start, "end": self.end, "text": self.text, "score": self.score}
        return told if self.asked is None else {**told, "for": list(self.asked)}


@dataclass(frozen=True, kw_only=True)
class TaskAnswer:
    """The answer to a row."""

    answer: Any
    kept: tuple[KeptBlock, ...] | None = None
    """The blocks that it was found in; None where the text was not read by blocks."""
    seen: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of the text that the system read."""

    def as_dict(self) -> dict[str, Any]:
        """What is written beside the row."""
        if self.kept is None:
            return {"answered": self.answer}
        return {"answered": self.answer, "kept": [each.as_dict() for each in self.kept]}


@dataclass(frozen=True, kw_only=True)
class EncodedSplit:
    """The rows of one split that can be used, as the system reads them."""

    rows: list[Row]
    encoded: list[EncodedExample]
    dropped: int
    owners: list[int] = field(default_factory=list)
    """The row that each of `encoded` is of, where a row has several."""
    cut: int = 0
    """Rows of whose texts not all is read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputPipeline:
    """Rows as a task encodes them, cut at their ends; subclasses read long texts in other ways."""

    name: ClassVar[str] = ""
    told: ClassVar[str] = ""
    """What is read of a long text, in a few words."""
    task: Task
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    longest: int
    """Tokens that the system takes, <s> counted."""
    settings: LongTextConfig = LongTextConfig()
    judge: str | None = None
    """What teaches the judge, where there is one: labels or interventions."""

    def build(self, base: System, *, frozen: bool) -> System:
        """The system that is trained."""
        return add_task_head(base, self.task, frozen=frozen)

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        """Every row as the system reads it; the training split may lose those of no use."""
        kept: list[Row] = []
        encoded: list[EncodedExample] = []
        for row in rows:
            try:
                encoded.append(self.task.encode(row, self.tokenizer, self.vocabulary, self.longest))
            except AnswerTruncated:
                continue
            kept.append(row)
        cut = sum(each.cut for each in encoded)
        return EncodedSplit(rows=kept, encoded=encoded, dropped=len(rows) - len(kept), cut=cut)

    def begin(self, system: System, prepared: Mapping[str, EncodedSplit], seed: int) -> None:
        """Told all rows before the training; few need to know."""
        return

    def batches(
        self, prepared: EncodedSplit, system: System, config: TrainingConfig, *, training: bool
    ) -> BatchLoader:
        """Batches of a split."""
        return TaskBatches(prepared, config, self.vocabulary.pad, shuffle=training)

    def answer(self, system: Any, prepared: EncodedSplit) -> list[TaskAnswer]:
        """An answer to each row."""
        found = predict_rows(system, self.task, self.tokenizer, prepared.rows, prepared.encoded)
        return [
            TaskAnswer(answer=answer, seen=spans_read([read]))
            for answer, read in zip(found, prepared.encoded, strict=True)
        ]

    def text(self, row: Row) -> TextBlock:
        """The row's text, all of it."""
        return text_as_block(self.task.text(row), self.tokenizer)

    def query(self, row: Row) -> TextBlock | None:
        """What is asked, at most half of what the system takes; None where nothing is."""
        question = self.task.question(row)
        if question is None:
            return None
        return text_as_block(question, self.tokenizer).part(0, self.max_question_tokens).blank()

    @property
    def max_question_tokens(self) -> int:
        """Tokens that a question may have, so that a text fits beside it."""
        return self.longest // 2

    def questions_cut(self, rows: Sequence[Row]) -> int:
        """Rows of whose questions not all is read by this way; without a way `EncodedSplit.cut` tells
        it."""
        if not self.name:
            return 0
        questions = [question for row in rows if (question := self.task.question(row)) is not None]
        return sum(
            len(self.tokenizer.encode(each)) > self.max_question_tokens for each in questions
        )

    def with_labels(self, row: Row, read: EncodedExample) -> EncodedExample:
        """With the row's labels; those of an answer that is not there say so."""
        try:
            return self.task.with_labels(row, read)
        except AnswerTruncated:
            return replace(read, labels=[ANSWER_TRUNCATED_LABEL, ANSWER_TRUNCATED_LABEL])


def spans_read(encoded: Sequence[EncodedExample]) -> tuple[tuple[int, int], ...]:
    """Characters of the text that were read, neighbouring tokens joined."""
    spans = sorted({span for read in encoded for span in read.spans if span[0] < span[1]})
    found: list[tuple[int, int]] = []
    for low, high in spans:
        # One character of white space may lie between two tokens.
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def head_scores(system: Any, encoded: Sequence[EncodedExample]) -> list[Tensor]:
    """The head's scores for each: (labels,), or (T, labels) for its own T tokens."""
    found: dict[int, Tensor] = {}
    for group in group_by_length([len(each.tokens) for each in encoded], TOKENS_PER_BATCH):
        chosen = [encoded[index] for index in group]
        with evaluation_mode(system):
            batch = collate_examples(chosen, system.vocabulary.pad).to(device_of(system))
            scores = system.scores(batch).cpu()
        for row, index in enumerate(group):
            one = scores[row]
            found[index] = one[: len(encoded[index].tokens)] if one.ndim == 2 else one
    return [found[index] for index in range(len(encoded))]


class TaskBatches:
    """Rows of like length side by side, as `LengthBatches` makes them, with their labels."""

    def __init__(
        self, prepared: EncodedSplit, config: TrainingConfig, pad: int, *, shuffle: bool
    ) -> None:
        self.prepared, self.pad = prepared, pad
        lengths = [max(len(each.tokens), len(each.condition or ())) for each in prepared.encoded]
        self.order = length_ordered_batches(lengths, config, shuffle=shuffle)

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.order.epoch(number, start):
            rows = batch.rows.tolist()
            yield collate_examples([self.prepared.encoded[row] for row in rows], self.pad, rows)


def length_ordered_batches(
    lengths: Sequence[int], config: TrainingConfig, *, shuffle: bool
) -> LengthBatches:
    """Which examples of these lengths stand side by side: batches whose `rows` alone matter."""
    return LengthBatches(
        _Lengths(lengths),  # type: ignore[arg-type]
        tokens_per_batch=config.tokens_per_batch,
        seed=config.seed,
        shuffle=shuffle,
    )


class _Lengths:
    """What `LengthBatches` asks of a dataset, of lengths alone."""

    has_condition = False
    has_entities = False

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = np.array(lengths, dtype=np.int64)
        self.vocabulary = _Pad()

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Any:
        return np.zeros(1, dtype=np.int64)

    def lengths_between(self, low: int, high: int) -> Any:
        return self._lengths[low:high]


@dataclass(frozen=True)
class _Pad:
    pad: int = 0


def window_too_small_error(longest: int, block: int) -> UserError:
    """Where a block, a question and the symbols do not fit together."""
    return UserError(
        f"a block of {block} tokens does not fit beside a question into the {longest} tokens that "
        "the system takes; give --set block=N with a smaller one, or train it longer."
    )
