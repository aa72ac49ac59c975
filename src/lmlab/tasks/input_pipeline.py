"""Input pipelines of sequence tasks: rows encoded, truncated, batched; answers; long-text base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import LengthBatches
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.finetuned import ANSWER_TRUNCATED_LABEL
from lmlab.tasks.finetuned_model import TaskAnswer
from lmlab.tasks.long_context.blocks import TextBlock, query_length, text_as_block
from lmlab.tasks.sequence_task import HeadTask, SequenceTask
from lmlab.tasks.task import AnswerTruncated, EncodedExample, Row, collate_examples
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader

UNLIMITED_LENGTH = 10**6
"""The maximum length of a model without a window."""


@dataclass(frozen=True, kw_only=True)
class LongTextConfig(MemRecallConfig):
    """Settings of the strategies for texts that are longer than a model's window."""

    overlap: float = field(default=0.5, metadata={"at_least": 0, "below": 1})
    """The share of a sliding window that overlaps with the next one."""
    pool: Literal["mean", "max"] = "mean"
    """How the vectors of several windows are pooled."""


@dataclass(frozen=True, kw_only=True)
class KeptBlock:
    """A block of a text that MemRecall retained in the working memory."""

    start: int
    end: int
    text: str
    score: float
    """The judge's relevance score, from 0 to 1."""
    query_span: tuple[int, int] | None = None
    """For tagging: characters [start, end) of the query block that it was retained for."""

    def as_dict(self) -> dict[str, Any]:
        fields = {"start": self.start, "end": self.end, "text": self.text, "score": self.score}
        return fields if self.query_span is None else {**fields, "for": list(self.query_span)}


@dataclass(frozen=True, kw_only=True)
class SequenceAnswer(TaskAnswer):
    """The answer to a row of a sequence task."""

    kept: tuple[KeptBlock, ...] | None = None
    """The retained blocks; None if the text was not split into blocks."""
    seen: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of the text that the model encoded."""

    def details(self) -> list[str]:
        return [f"{block.score:.2f}  {block.text}" for block in self.kept or ()]

    def as_dict(self) -> dict[str, Any]:
        blocks = {} if self.kept is None else {"kept": [block.as_dict() for block in self.kept]}
        return {"answered": self.answer, **blocks}


@dataclass(frozen=True, kw_only=True)
class EncodedSplit:
    """The usable rows of a split with their encoded examples."""

    rows: list[Row]
    encoded: list[EncodedExample]
    dropped: int
    row_of_input: list[int] = field(default_factory=list)
    """The row of each encoded example, if a row has several."""
    truncated: int = 0
    """Rows whose texts are truncated."""


SystemT = TypeVar("SystemT", bound=System)
SplitT = TypeVar("SplitT", bound=EncodedSplit)


@dataclass(frozen=True, kw_only=True, eq=False)
class InputPipeline(Generic[SystemT, SplitT]):
    """Rows as their task encodes them, truncated; subclasses are strategies for long texts."""

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    """The part of a long text that is encoded, in a few words."""
    task: SequenceTask
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    max_length: int
    """The maximum length in tokens, <s> included."""
    settings: LongTextConfig = LongTextConfig()
    relevance_supervision: str | None = None
    """Supervision of MemRecall's judge, if there is one: labels or interventions."""

    def as_config(self) -> dict[str, Any]:
        """What config.json records of the strategy; empty if there is none."""
        if not self.name:
            return {}
        settings = asdict(self.settings)
        return {"long": self.name, "judge": self.relevance_supervision, "long_settings": settings}

    def build(self, base: System, *, frozen: bool) -> System:
        """The model that is trained."""
        return self.task.build(base, frozen=frozen)

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedSplit:
        """The encoded rows; rows without an answer may be dropped from the training split."""
        retained: list[Row] = []
        encoded: list[EncodedExample] = []
        for row in rows:
            try:
                encoded.append(
                    self.task.encode(row, self.tokenizer, self.vocabulary, self.max_length)
                )
            except AnswerTruncated:
                continue
            retained.append(row)
        truncated = sum(example.truncated for example in encoded)
        return EncodedSplit(
            rows=retained, encoded=encoded, dropped=len(rows) - len(retained), truncated=truncated
        )

    def setup(self, system: SystemT, prepared: Mapping[str, SplitT], seed: int) -> None:
        """Called with all splits before the training."""
        return

    def batches(
        self, prepared: SplitT, system: SystemT, config: TrainingConfig, *, training: bool
    ) -> BatchLoader:
        """The loader of a split."""
        return TaskBatches(prepared, config, self.vocabulary.pad, shuffle=training)

    def answer(self, system: SystemT, prepared: SplitT) -> list[SequenceAnswer]:
        """The answer to each row."""
        answers = self.task.predict(system, self.tokenizer, prepared.rows, prepared.encoded)
        return [
            SequenceAnswer(answer=answer, seen=spans_read([example]))
            for answer, example in zip(answers, prepared.encoded, strict=True)
        ]

    def text(self, row: Row) -> TextBlock:
        """The row's text, all of it."""
        return text_as_block(self.task.text(row), self.tokenizer)

    def query(self, row: Row) -> TextBlock | None:
        """The question, truncated to half of the maximum length; None if there is none."""
        question = self.task.question(row)
        if question is None:
            return None
        return (
            text_as_block(question, self.tokenizer)
            .part(0, self.max_question_tokens)
            .without_spans()
        )

    def max_text_tokens(self, query: TextBlock | None) -> int:
        """The maximum length of a text after a query, without its end token."""
        end = self.vocabulary.end is not None
        return self.max_length - query_length(query, self.vocabulary) - end

    @property
    def max_question_tokens(self) -> int:
        """The maximum length of a question, so that a text fits after it."""
        return self.max_length // 2

    def count_truncated_questions(self, rows: Sequence[Row]) -> int:
        """Rows whose questions this strategy truncates; else see `EncodedSplit.truncated`."""
        if not self.name:
            return 0
        questions = [question for row in rows if (question := self.task.question(row)) is not None]
        return sum(
            len(self.tokenizer.encode(text)) > self.max_question_tokens for text in questions
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LongTextPipeline(InputPipeline[SystemT, SplitT]):
    """Base class of strategies for long texts, for tasks with a head."""

    task: HeadTask

    def with_labels(self, row: Row, example: EncodedExample) -> EncodedExample:
        """With the row's labels; a truncated answer has ANSWER_TRUNCATED_LABEL."""
        try:
            return self.task.with_labels(row, example)
        except AnswerTruncated:
            return replace(example, labels=[ANSWER_TRUNCATED_LABEL, ANSWER_TRUNCATED_LABEL])


def spans_read(encoded: Sequence[EncodedExample]) -> tuple[tuple[int, int], ...]:
    """Characters [start, end) of the text that were encoded, adjacent tokens joined."""
    spans = sorted({span for example in encoded for span in example.spans if span[0] < span[1]})
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        # One character of white space may lie between two tokens.
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


class TaskBatches:
    """Batches of examples of similar length (`LengthBatches`), with their labels."""

    def __init__(
        self, prepared: EncodedSplit, config: TrainingConfig, pad: int, *, shuffle: bool
    ) -> None:
        self.prepared, self.pad = prepared, pad
        lengths = [max(len(e.tokens), len(e.condition or ())) for e in prepared.encoded]
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
    """Which examples of these lengths form a batch: batches of which only `rows` matters."""
    return LengthBatches(
        _Lengths(lengths),  # type: ignore[arg-type]
        tokens_per_batch=config.tokens_per_batch,
        seed=config.seed,
        shuffle=shuffle,
    )


class _Lengths:
    """The part of a dataset that `LengthBatches` needs, of lengths alone."""

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


def window_too_small_error(max_length: int, block: int) -> UserError:
    """The error if a block, a question and the special tokens exceed the window."""
    return UserError(
        f"a block of {block} tokens does not fit with a question into the window of {max_length} "
        "tokens; try a smaller --set block=N, or train with longer texts."
    )
