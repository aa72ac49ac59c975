"""CogLTX's input pipeline: a judge recalls blocks of a long text, a reasoner predicts from them.

Ding et al. 2020, "CogLTX: Applying BERT to Long Texts"; MemRecall itself is in `memrecall.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.models.cogltx import CogLTX
from lmlab.tasks.input_pipeline import (
    EncodedSplit,
    KeptBlock,
    LongTextPipeline,
    SequenceAnswer,
    spans_read,
    window_too_small_error,
)
from lmlab.tasks.long_context.blocks import (
    BlockQuery,
    TextBlock,
    concatenate_blocks,
    make_blocks,
    query_length,
)
from lmlab.tasks.long_context.memrecall import (
    LongText,
    MemoryBudget,
    MemRecallResult,
    WorkingMemory,
    mem_recall,
    score_blocks,
)
from lmlab.tasks.long_context.memrecall_batches import MemRecallBatches
from lmlab.tasks.long_context.relevance_labels import initial_relevance
from lmlab.tasks.task import EncodedExample, Row
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader

EXAMPLES_PER_BATCH = 64
"""Examples whose blocks are scored in one batch, which bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class MemRecallExample:
    """MemRecall's input for one query about a row."""

    row: int
    text: LongText
    block_spans: tuple[tuple[int, int], ...]
    """Characters [start, end) of each block."""
    contains_answer: tuple[bool, ...]
    """Which blocks hold the answer."""
    relevant: tuple[bool, ...] | None
    """Which blocks the row marks as relevant, if it has marks."""
    query_span: tuple[int, int] | None = None
    """Characters [start, end) of the query, if it is a block of the text itself."""


@dataclass(frozen=True, kw_only=True)
class EncodedMemRecallSplit(EncodedSplit):
    """A split whose rows are encoded at recall time."""

    examples: list[MemRecallExample]


@dataclass(frozen=True, kw_only=True, eq=False)
class MemRecallPipeline(LongTextPipeline[CogLTX, EncodedMemRecallSplit]):
    """MemRecall pipeline: the blocks that the judge retains are the input of the task's head.

    The queries are the task's: the question about all blocks, or for tagging each block in turn,
    with the others as context.
    """

    name: ClassVar[str] = "memrecall"
    description: ClassVar[str] = "the blocks that a judge scores as relevant"

    def build(self, base: System, *, frozen: bool) -> System:
        return CogLTX(base, self.task, frozen=frozen)

    def prepare(self, rows: Sequence[Row], *, training: bool) -> EncodedMemRecallSplit:
        examples = [example for i, row in enumerate(rows) for example in self.examples(i, row)]
        if training and self.relevance_supervision == "labels":
            unlabelled = [encoded.row for encoded in examples if encoded.relevant is None]
            if unlabelled:
                raise UserError(
                    f"row {unlabelled[0] + 1} of the training split has no relevant, which --judge "
                    "labels needs; add it, or use --judge interventions."
                )
        return EncodedMemRecallSplit(rows=list(rows), encoded=[], dropped=0, examples=examples)

    def examples(self, index: int, row: Row) -> Iterator[MemRecallExample]:
        """One example per query of the task about the row."""
        length = self.settings.block_length(self.max_length)
        blocks = make_blocks(self.task.text(row), self.tokenizer, length)
        question = self.query(row) or TextBlock(tokens=(), spans=())
        queries = self.task.block_queries(question, blocks)
        first_query = queries[0].query if queries else question
        if query_length(first_query, self.vocabulary) + length + 1 > self.max_length:
            raise window_too_small_error(self.max_length, length)
        for query in queries:
            if query.span is None and not blocks:
                raise UserError(f"row {index + 1} has an empty text.")
            yield self._example(index, row, query)

    def _example(self, index: int, row: Row, query: BlockQuery) -> MemRecallExample:
        block_spans = tuple(block.span for block in query.blocks)
        relevant = [(low, high) for low, high in row["relevant"]] if "relevant" in row else None
        answers = self.task.answer_spans(row)
        # If the query is a block, only its own words are predicted.
        blocks = query.blocks if query.span is None else [b.without_spans() for b in query.blocks]
        return MemRecallExample(
            row=index,
            text=LongText(query=query.query, blocks=tuple(blocks)),
            block_spans=block_spans,
            contains_answer=_overlapping(block_spans, answers),
            relevant=None if relevant is None else _overlapping(block_spans, [*relevant, *answers]),
            query_span=query.span,
        )

    @property
    def budget(self) -> MemoryBudget:
        return MemoryBudget(longest=self.max_length, vocabulary=self.vocabulary)

    def recall(self, system: CogLTX, examples: Sequence[MemRecallExample]) -> list[MemRecallResult]:
        return mem_recall(
            [example.text for example in examples],
            partial(score_blocks, system.relevance_scorer),
            self.settings,
            max_length=self.max_length,
            vocabulary=self.vocabulary,
        )

    def setup(
        self, system: CogLTX, prepared: Mapping[str, EncodedMemRecallSplit], seed: int
    ) -> None:
        """Initialise the relevance labels: those of the rows, or the best blocks by BM25."""
        train = prepared["train"]
        generator = np.random.default_rng([seed, len(train.examples)])
        labels = torch.zeros(
            len(train.examples), max(len(item.block_spans) for item in train.examples)
        )
        for index, example in enumerate(train.examples):
            if self.relevance_supervision == "labels":
                assert example.relevant is not None
                marks: Sequence[bool] = example.relevant
            else:
                marks = initial_relevance(example.text, self.settings.first_relevant, generator)
            labels[index, : len(marks)] = torch.tensor(marks, dtype=torch.float32)
        system.set_relevance(labels)

    def batches(
        self,
        prepared: EncodedMemRecallSplit,
        system: CogLTX,
        config: TrainingConfig,
        *,
        training: bool,
    ) -> BatchLoader:
        return MemRecallBatches(self, prepared, system, config, training=training)

    def read(self, row: Row, memory: WorkingMemory) -> EncodedExample:
        """An encoded memory with the labels of its row."""
        encoded = concatenate_blocks(memory.text.query, memory.blocks, self.vocabulary)
        return self.with_labels(row, encoded)

    def answer(self, system: CogLTX, prepared: EncodedMemRecallSplit) -> list[SequenceAnswer]:
        results: list[MemRecallResult] = []
        for start in range(0, len(prepared.examples), EXAMPLES_PER_BATCH):
            results += self.recall(system, prepared.examples[start : start + EXAMPLES_PER_BATCH])
        rows = [prepared.rows[example.row] for example in prepared.examples]
        encoded = [self.read(row, result.memory) for row, result in zip(rows, results, strict=True)]
        answers: list[Any] = self.task.predict(system.reasoner, self.tokenizer, rows, encoded)
        example_indices: list[list[int]] = [[] for _ in prepared.rows]
        for index, example in enumerate(prepared.examples):
            example_indices[example.row].append(index)
        return [
            SequenceAnswer(
                answer=self.task.merge_block_answers(
                    row, [(answers[i], encoded[i]) for i in indices]
                ),
                kept=tuple(
                    block
                    for i in indices
                    for block in kept_blocks(self.task.text(row), prepared.examples[i], results[i])
                ),
                seen=spans_read_by_examples([(prepared.examples[i], results[i]) for i in indices]),
            )
            for row, indices in zip(prepared.rows, example_indices, strict=True)
        ]


def _overlapping(
    block_spans: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> tuple[bool, ...]:
    """Which blocks overlap any of the spans."""
    return tuple(any(a < high and b > low for low, high in spans) for a, b in block_spans)


def kept_blocks(
    text: str, example: MemRecallExample, recalled: MemRecallResult
) -> Iterator[KeptBlock]:
    """The retained blocks with their last fine scores."""
    for number in recalled.memory.numbers:
        low, high = example.block_spans[number]
        yield KeptBlock(
            start=low,
            end=high,
            text=text[low:high],
            score=recalled.scores[number],
            query_span=example.query_span,
        )


def spans_read_by_examples(
    pairs: Sequence[tuple[MemRecallExample, MemRecallResult]],
) -> tuple[tuple[int, int], ...]:
    """Characters of the text that any of these examples encoded."""
    spans = [
        example.block_spans[number]
        for example, recalled in pairs
        for number in recalled.memory.numbers
    ] + [example.query_span for example, _ in pairs if example.query_span is not None]
    return spans_read([EncodedExample(tokens=[], labels=[], spans=spans)])
