"""CogLTX: a task on long texts by a judge that recalls blocks and a reasoner that reads them.

Ding et al. 2020, "CogLTX: Applying BERT to Long Texts"; MemRecall itself is in `memrecall.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.tasks.input_pipeline import (
    EncodedSplit,
    InputPipeline,
    KeptBlock,
    Row,
    TaskAnswer,
    spans_read,
    window_too_small_error,
)
from lmlab.tasks.long_context.blocks import (
    TextBlock,
    concatenate_blocks,
    make_blocks,
    query_length,
)
from lmlab.tasks.long_context.cogltx_model import CogLTX
from lmlab.tasks.long_context.interventions import initial_relevance
from lmlab.tasks.long_context.memrecall import (
    LongText,
    MemoryBudget,
    MemRecallResult,
    WorkingMemory,
    mem_recall,
)
from lmlab.tasks.long_context.memrecall_batches import MemRecallBatches
from lmlab.tasks.prediction import predict_rows
from lmlab.tasks.span_extraction import (
    SpanExtraction,
    answer_span,
)
from lmlab.tasks.tagging import (
    OUTSIDE_TAG,
    Tagging,
    first_tokens,
)
from lmlab.tasks.task import EncodedExample
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader

EXAMPLES_PER_BATCH = 64
"""Examples whose blocks are recalled together, which bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class MemRecallExample:
    """A row, or a block of a row that is tagged, as MemRecall takes it."""

    row: int
    text: LongText
    places: tuple[tuple[int, int], ...]
    """Characters [start, end) of each block."""
    certain: tuple[bool, ...]
    """Blocks without which there is no answer: those that hold it."""
    relevant: tuple[bool, ...] | None
    """What the row says of each block, where it says anything."""
    asked: tuple[int, int] | None = None
    """Where words are tagged, the characters of the block that they stand in."""


@dataclass(frozen=True, kw_only=True)
class EncodedMemRecallSplit(EncodedSplit):
    examples: list[MemRecallExample]


@dataclass(frozen=True, kw_only=True, eq=False)
class MemRecallPipeline(InputPipeline):
    """Blocks that a judge keeps, read by the task's own head.

    span and classify: the question (or nothing) is the query, and the answer lies in the blocks.
    tag: each block in turn is the query; its own words are tagged, with the others as context.
    """

    name: ClassVar[str] = "memrecall"
    told: ClassVar[str] = "the sentences that a judge finds relevant"

    def build(self, base: System, *, frozen: bool) -> System:
        return CogLTX(base, self.task, frozen=frozen)

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedMemRecallSplit:
        examples = [made for number, row in enumerate(rows) for made in self.examples(number, row)]
        if training and self.judge == "labels":
            lacking = [each.row for each in examples if each.relevant is None]
            if lacking:
                raise UserError(
                    f"row {lacking[0] + 1} of the training split has no relevant, which a judge "
                    "taught by labels needs; give it, or take --judge interventions."
                )
        return EncodedMemRecallSplit(rows=list(rows), encoded=[], dropped=0, examples=examples)

    def examples(self, number: int, row: Row) -> Iterator[MemRecallExample]:
        """One for a row; where words are tagged, one for each of its blocks."""
        length = self.settings.block_length(self.longest)
        blocks = make_blocks(self.task.text(row), self.tokenizer, length)
        nothing = TextBlock(tokens=(), spans=())
        query = self.query(row) or nothing
        asked = blocks[0] if isinstance(self.task, Tagging) and blocks else query
        if query_length(asked, self.vocabulary) + length + 1 > self.longest:
            raise window_too_small_error(self.longest, length)
        if not isinstance(self.task, Tagging):
            if not blocks:
                raise UserError(f"row {number + 1} has an empty text.")
            yield self._example(number, row, query, blocks, None)
            return
        for each in blocks:
            others = [block for block in blocks if block is not each]
            yield self._example(number, row, each, others, each.place)

    def _example(
        self,
        number: int,
        row: Row,
        query: TextBlock,
        blocks: Sequence[TextBlock],
        asked: tuple[int, int] | None,
    ) -> MemRecallExample:
        places = tuple(block.place for block in blocks)
        told = [(low, high) for low, high in row["relevant"]] if "relevant" in row else None
        answer = (
            [answer_span(row)] if isinstance(self.task, SpanExtraction) and "answer" in row else []
        )
        # The words to be tagged are those of the query: of no other is an answer asked.
        read = blocks if asked is None else [block.blank() for block in blocks]
        return MemRecallExample(
            row=number,
            text=LongText(query=query, blocks=tuple(read)),
            places=places,
            certain=_touched(places, answer),
            relevant=None if told is None else _touched(places, [*told, *answer]),
            asked=asked,
        )

    @property
    def room(self) -> MemoryBudget:
        return MemoryBudget(longest=self.longest, vocabulary=self.vocabulary)

    def recall(self, system: CogLTX, examples: Sequence[MemRecallExample]) -> list[MemRecallResult]:
        return mem_recall(
            [each.text for each in examples],
            system.judge.score,
            self.settings,
            longest=self.longest,
            vocabulary=self.vocabulary,
        )

    def begin(self, system: System, prepared: Mapping[str, EncodedSplit], seed: int) -> None:
        """The marks at the beginning: what the rows say, or BM25's best."""
        train = prepared["train"]
        assert isinstance(system, CogLTX) and isinstance(train, EncodedMemRecallSplit)
        generator = np.random.default_rng([seed, len(train.examples)])
        marks = torch.zeros(len(train.examples), max(len(each.places) for each in train.examples))
        for index, example in enumerate(train.examples):
            if self.judge == "labels":
                assert example.relevant is not None
                first: Sequence[bool] = example.relevant
            else:
                first = initial_relevance(example.text, self.settings.first_relevant, generator)
            marks[index, : len(first)] = torch.tensor(first, dtype=torch.float32)
        system.set_relevance(marks)

    def batches(
        self, prepared: EncodedSplit, system: System, config: TrainingConfig, *, training: bool
    ) -> BatchLoader:
        assert isinstance(system, CogLTX) and isinstance(prepared, EncodedMemRecallSplit)
        return MemRecallBatches(self, prepared, system, config, training=training)

    def read(self, row: Row, memory: WorkingMemory) -> EncodedExample:
        """A memory with the labels of its row."""
        read = concatenate_blocks(memory.text.query, memory.blocks, self.vocabulary)
        return self.with_labels(row, read)

    def answer(self, system: Any, prepared: EncodedSplit) -> list[TaskAnswer]:
        assert isinstance(prepared, EncodedMemRecallSplit)
        recalled: list[MemRecallResult] = []
        for low in range(0, len(prepared.examples), EXAMPLES_PER_BATCH):
            recalled += self.recall(system, prepared.examples[low : low + EXAMPLES_PER_BATCH])
        rows = [prepared.rows[example.row] for example in prepared.examples]
        read = [self.read(row, each.memory) for row, each in zip(rows, recalled, strict=True)]
        found = predict_rows(system.reasoner, self.task, self.tokenizer, rows, read)
        mine: list[list[int]] = [[] for _ in prepared.rows]
        for index, example in enumerate(prepared.examples):
            mine[example.row].append(index)
        return [
            TaskAnswer(
                answer=self._of_row(row, [(found[i], read[i]) for i in own]),
                kept=tuple(
                    kept
                    for i in own
                    for kept in kept_blocks(self.task.text(row), prepared.examples[i], recalled[i])
                ),
                seen=spans_read_by_examples([(prepared.examples[i], recalled[i]) for i in own]),
            )
            for row, own in zip(prepared.rows, mine, strict=True)
        ]

    def _of_row(self, row: Row, found: Sequence[tuple[Any, EncodedExample]]) -> Any:
        """The one answer; of tags, each word's from the example that asked for it."""
        if not isinstance(self.task, Tagging):
            return found[0][0]
        words = [str(word) for word in row["words"]]
        tags = [OUTSIDE_TAG] * len(words)
        for answer, read in found:
            for word, place in enumerate(first_tokens(words, read)):
                tags[word] = tags[word] if place is None else answer[word]
        return tags


def _touched(
    places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> tuple[bool, ...]:
    """Which blocks have a character in any of the spans."""
    return tuple(any(a < high and b > low for low, high in spans) for a, b in places)


def kept_blocks(
    text: str, example: MemRecallExample, recalled: MemRecallResult
) -> Iterator[KeptBlock]:
    """The blocks that were kept, with their last fine scores."""
    for number in recalled.memory.numbers:
        low, high = example.places[number]
        yield KeptBlock(
            start=low,
            end=high,
            text=text[low:high],
            score=recalled.scores[number],
            asked=example.asked,
        )


def spans_read_by_examples(
    each: Sequence[tuple[MemRecallExample, MemRecallResult]],
) -> tuple[tuple[int, int], ...]:
    """Characters of the text that any of these read."""
    places = [
        example.places[number] for example, recalled in each for number in recalled.memory.numbers
    ] + [example.asked for example, _ in each if example.asked is not None]
    return spans_read([EncodedExample(tokens=[], labels=[], spans=places)])
