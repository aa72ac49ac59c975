"""CogLTX: a task on long texts by a judge that recalls blocks and a reasoner that reads them.

Ding et al. 2020, "CogLTX: Applying BERT to Long Texts"; MemRecall itself is in `memrecall.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import EncodeTokens, require
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.tasks.answering import answer_rows
from lmlab.tasks.blocks import Block, make_blocks, side_by_side, size_of
from lmlab.tasks.interventions import first_marks, intervene
from lmlab.tasks.judge import Judge, lessons
from lmlab.tasks.memrecall import LongText, Memory, Recalled, Room, best_first, compete, recall
from lmlab.tasks.reading import (
    Answered,
    Kept,
    Prepared,
    Reading,
    Row,
    order_of,
    scores_of,
    seen_of,
    too_small,
)
from lmlab.tasks.span import Span, answer_span
from lmlab.tasks.systems import WithHead, vector_width
from lmlab.tasks.tag import OUTSIDE, Tag, first_tokens
from lmlab.tasks.task import LOST, Encoded, Task, batch_of
from lmlab.training.config import TrainingConfig
from lmlab.training.data import BatchSource

ROWS_AT_ONCE = 64
"""Examples whose blocks are recalled together, which bounds the memory."""
MARKS = "marks"
"""The buffer of what is relevant in the training examples, as far as is known."""


class WithMemory(System):
    """A judge and a reasoner, each an encoder of its own that starts as the trained system.

    A training batch holds memories with the task's labels; its `condition` what the judge is taught
    on with the relevance of each token, z_rand, and the condition of that z_relv. The loss is the
    sum of both means:

        mean over answers of -log p(answer | z)  +  mean over texts of the judge's cross-entropy
    """

    watched = "loss"

    def __init__(self, base: System, task: Task, *, frozen: bool) -> None:
        super().__init__()
        require(base, EncodeTokens, "recalling blocks of a long text")
        width = vector_width(base, task)
        judge_width = width if task.needs_tokens else vector_width(base, Tag())
        self.vocabulary, self.window = base.vocabulary, base.window
        self.judge = Judge(deepcopy(base), width=judge_width, frozen=frozen)
        self.reasoner = WithHead(base, task, width=width, frozen=frozen)

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        reasoned, _ = self.reasoner.loss(replace(batch, condition=None))
        if batch.condition is None:
            return reasoned, None
        each = torch.stack([self.judge.loss(z).mean() for z in _chained(batch.condition)])
        # So that both weigh the same whatever the number of labels of a text.
        judged = each.mean() * reasoned.count
        parts = {"reasoner": reasoned, "judge": Loss(judged, reasoned.count)}
        return Loss(reasoned.total + judged, reasoned.count, parts), None

    def answers(self, *given: Any) -> list[Any]:
        return self.reasoner.answers(*given)

    def remember(self, marks: torch.Tensor) -> None:
        """Keep the marks (examples, blocks) of the training with the weights, for its resuming."""
        self.register_buffer(MARKS, marks)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Marks of the training are left out where there is no training."""
        wanted = {k: v for k, v in state_dict.items() if k != MARKS or hasattr(self, MARKS)}
        return super().load_state_dict(wanted, strict, assign)


@dataclass(frozen=True, kw_only=True)
class Example:
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
class PreparedExamples(Prepared):
    examples: list[Example]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recalling(Reading):
    """Blocks that a judge keeps, read by the task's own head.

    span and classify: the question (or nothing) is the query, and the answer lies in the blocks.
    tag: each block in turn is the query; its own words are tagged, with the others as context.
    """

    name: ClassVar[str] = "memrecall"

    def build(self, base: System, *, frozen: bool) -> System:
        return WithMemory(base, self.task, frozen=frozen)

    def prepare(self, rows: Sequence[Row], *, training: bool) -> PreparedExamples:
        examples = [made for number, row in enumerate(rows) for made in self.examples(number, row)]
        if training and self.judge == "labels":
            lacking = [each.row for each in examples if each.relevant is None]
            if lacking:
                raise UserError(
                    f"row {lacking[0] + 1} of the training split has no relevant, which a judge "
                    "taught by labels needs; give it, or take --judge interventions."
                )
        return PreparedExamples(rows=list(rows), encoded=[], dropped=0, examples=examples)

    def examples(self, number: int, row: Row) -> Iterator[Example]:
        """One for a row; where words are tagged, one for each of its blocks."""
        length = self.settings.block_length(self.longest)
        blocks = make_blocks(self.task.text(row), self.tokenizer, length)
        nothing = Block(tokens=(), spans=())
        query = self.query(row) or nothing
        asked = blocks[0] if isinstance(self.task, Tag) and blocks else query
        if size_of(asked, self.vocabulary) + length + 1 > self.longest:
            raise too_small(self.longest, length)
        if not isinstance(self.task, Tag):
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
        query: Block,
        blocks: Sequence[Block],
        asked: tuple[int, int] | None,
    ) -> Example:
        places = tuple(block.place for block in blocks)
        told = [(low, high) for low, high in row["relevant"]] if "relevant" in row else None
        answer = [answer_span(row)] if isinstance(self.task, Span) and "answer" in row else []
        # The words to be tagged are those of the query: of no other is an answer asked.
        read = blocks if asked is None else [block.blank() for block in blocks]
        return Example(
            row=number,
            text=LongText(query=query, blocks=tuple(read)),
            places=places,
            certain=_touched(places, answer),
            relevant=None if told is None else _touched(places, [*told, *answer]),
            asked=asked,
        )

    @property
    def room(self) -> Room:
        return Room(longest=self.longest, vocabulary=self.vocabulary)

    def recall(self, system: WithMemory, examples: Sequence[Example]) -> list[Recalled]:
        return recall(
            [each.text for each in examples],
            system.judge.score,
            self.settings,
            longest=self.longest,
            vocabulary=self.vocabulary,
        )

    def begin(self, system: System, prepared: Mapping[str, Prepared], seed: int) -> None:
        """The marks at the beginning: what the rows say, or BM25's best."""
        train = prepared["train"]
        assert isinstance(system, WithMemory) and isinstance(train, PreparedExamples)
        generator = np.random.default_rng([seed, len(train.examples)])
        marks = torch.zeros(len(train.examples), max(len(each.places) for each in train.examples))
        for index, example in enumerate(train.examples):
            if self.judge == "labels":
                assert example.relevant is not None
                first: Sequence[bool] = example.relevant
            else:
                first = first_marks(example.text, self.settings.first_relevant, generator)
            marks[index, : len(first)] = torch.tensor(first, dtype=torch.float32)
        system.remember(marks)

    def batches(
        self, prepared: Prepared, system: System, config: TrainingConfig, *, training: bool
    ) -> BatchSource:
        assert isinstance(system, WithMemory) and isinstance(prepared, PreparedExamples)
        return RecallBatches(self, prepared, system, config, training=training)

    def read(self, row: Row, memory: Memory) -> Encoded:
        """A memory with the labels of its row."""
        read = side_by_side(memory.text.query, memory.blocks, self.vocabulary)
        return self.labelled(row, read)

    def answer(self, system: Any, prepared: Prepared) -> list[Answered]:
        assert isinstance(prepared, PreparedExamples)
        recalled: list[Recalled] = []
        for low in range(0, len(prepared.examples), ROWS_AT_ONCE):
            recalled += self.recall(system, prepared.examples[low : low + ROWS_AT_ONCE])
        rows = [prepared.rows[example.row] for example in prepared.examples]
        read = [self.read(row, each.memory) for row, each in zip(rows, recalled, strict=True)]
        found = answer_rows(system.reasoner, self.task, self.tokenizer, rows, read)
        mine: list[list[int]] = [[] for _ in prepared.rows]
        for index, example in enumerate(prepared.examples):
            mine[example.row].append(index)
        return [
            Answered(
                answer=self._of_row(row, [(found[i], read[i]) for i in own]),
                kept=tuple(
                    kept
                    for i in own
                    for kept in kept_blocks(self.task.text(row), prepared.examples[i], recalled[i])
                ),
                seen=seen_of_examples([(prepared.examples[i], recalled[i]) for i in own]),
            )
            for row, own in zip(prepared.rows, mine, strict=True)
        ]

    def _of_row(self, row: Row, found: Sequence[tuple[Any, Encoded]]) -> Any:
        """The one answer; of tags, each word's from the example that asked for it."""
        if not isinstance(self.task, Tag):
            return found[0][0]
        words = [str(word) for word in row["words"]]
        tags = [OUTSIDE] * len(words)
        for answer, read in found:
            for word, place in enumerate(first_tokens(words, read)):
                tags[word] = tags[word] if place is None else answer[word]
        return tags


def _touched(
    places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> tuple[bool, ...]:
    """Which blocks have a character in any of the spans."""
    return tuple(any(a < high and b > low for low, high in spans) for a, b in places)


def kept_blocks(text: str, example: Example, recalled: Recalled) -> Iterator[Kept]:
    """The blocks that were kept, with their last fine scores."""
    for number in recalled.memory.numbers:
        low, high = example.places[number]
        yield Kept(
            start=low,
            end=high,
            text=text[low:high],
            score=recalled.scores[number],
            asked=example.asked,
        )


def seen_of_examples(each: Sequence[tuple[Example, Recalled]]) -> tuple[tuple[int, int], ...]:
    """Characters of the text that any of these read."""
    places = [
        example.places[number] for example, recalled in each for number in recalled.memory.numbers
    ] + [example.asked for example, _ in each if example.asked is not None]
    return seen_of([Encoded(tokens=[], labels=[], spans=places)])


def _chained(batch: Batch | None) -> Iterator[Batch]:
    """A batch, its condition, the condition of that, each by itself."""
    while batch is not None:
        yield replace(batch, condition=None)
        batch = batch.condition


class RecallBatches:
    """Memories that the judge of this moment recalls; in training with what belongs to it.

    In training a memory has all relevant blocks, and beside them the winners of one competition,
    as many as would be kept at last. In other splits it is what is recalled, as when it is asked.
    What a batch holds depends on the weights and marks of its step, both kept in a checkpoint, and
    on the seed, the epoch and the batch's number.
    """

    def __init__(
        self,
        reading: Recalling,
        prepared: PreparedExamples,
        system: WithMemory,
        config: TrainingConfig,
        *,
        training: bool,
    ) -> None:
        self.reading, self.prepared, self.system = reading, prepared, system
        self.seed, self.training = config.seed, training
        sizes = [_size(example, reading) for example in prepared.examples]
        self.order = order_of(sizes, config, shuffle=training)

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for place, batch in enumerate(self.order.epoch(number, start), start=start):
            chosen = batch.rows.tolist()
            generator = np.random.default_rng([self.seed, number, place])
            yield self._taught(chosen, number, generator) if self.training else self._asked(chosen)

    def _asked(self, chosen: list[int]) -> Batch:
        examples = [self.prepared.examples[index] for index in chosen]
        recalled = self.reading.recall(self.system, examples)
        return self._batch(chosen, [each.memory for each in recalled])

    def _batch(self, chosen: list[int], memories: Sequence[Memory]) -> Batch:
        rows = [self.prepared.rows[self.prepared.examples[index].row] for index in chosen]
        read = [self.reading.read(row, m) for row, m in zip(rows, memories, strict=True)]
        return batch_of(read, self.reading.vocabulary.pad, chosen)

    def _taught(self, chosen: list[int], epoch: int, generator: np.random.Generator) -> Batch:
        examples = [self.prepared.examples[index] for index in chosen]
        settings, marks = self.reading.settings, self._marks(chosen)
        empty = [Memory(text=example.text, numbers=()) for example in examples]
        scores = compete(
            empty, self.system.judge.score, self.reading.room, grouped=settings.grouped
        )
        memories = [
            reasoners_memory(
                memory, mark, example.certain, won, self.reading.room, keep=settings.keep[-1]
            )
            for memory, mark, example, won in zip(empty, marks, examples, scores, strict=True)
        ]
        if self.reading.judge == "interventions" and epoch >= settings.intervene_after:
            certain = [example.certain for example in examples]
            marks = intervene(memories, marks, certain, self._losses(chosen), settings)
            self._mark(chosen, marks)
        room, pad = self.reading.room, self.reading.vocabulary.pad
        taught = [
            lessons(example.text, mark, room, generator)
            for example, mark in zip(examples, marks, strict=True)
        ]
        condition: Batch | None = None
        for each in reversed(list(zip(*taught, strict=True))):
            condition = replace(batch_of(each, pad, chosen), condition=condition)
        return replace(self._batch(chosen, memories), condition=condition)

    def _marks(self, chosen: list[int]) -> list[list[bool]]:
        """What is marked relevant in each example, and what is certain to be."""
        kept = self.system.get_buffer(MARKS)[chosen].bool().tolist()
        examples = [self.prepared.examples[index] for index in chosen]
        return [
            [mark or certain for mark, certain in zip(row, each.certain, strict=False)]
            for row, each in zip(kept, examples, strict=True)
        ]

    def _mark(self, chosen: list[int], marks: Sequence[Sequence[bool]]) -> None:
        kept = self.system.get_buffer(MARKS)
        for index, mark in zip(chosen, marks, strict=True):
            kept[index, : len(mark)] = torch.tensor(mark, dtype=kept.dtype, device=kept.device)

    def _losses(self, chosen: list[int]) -> Any:
        """What `intervene` asks for: losses of memories of these examples."""

        def losses(memories: Sequence[Memory], rows: Sequence[int]) -> list[float]:
            owners = [self.prepared.examples[chosen[row]].row for row in rows]
            read = [
                self.reading.read(self.prepared.rows[owner], memory)
                for owner, memory in zip(owners, memories, strict=True)
            ]
            return row_losses(self.system.reasoner, read)

        return losses


def reasoners_memory(
    empty: Memory,
    marks: Sequence[bool],
    certain: Sequence[bool],
    scores: dict[int, float],
    room: Room,
    *,
    keep: int,
) -> Memory:
    """What the reasoner is taught on: all relevant blocks, then the winners of the competition.

    Certain ones come first, should the relevant be too many. As many blocks as MemRecall keeps at
    last (0: as fit), or more where more are relevant.
    """
    sure = [number for number, is_sure in enumerate(certain) if is_sure]
    marked = [n for n, mark in enumerate(marks) if mark and not certain[n]]
    winners = [n for n in best_first(scores) if not marks[n] and not certain[n]]
    most = max(keep or len(scores), len(sure) + len(marked))
    return room.fill(empty, [*sure, *marked, *winners][:most])


def row_losses(reasoner: WithHead, encoded: Sequence[Encoded]) -> list[float]:
    """-log p of the labels of each, in nats a label, without dropout."""
    found = []
    for read, scores in zip(encoded, scores_of(reasoner, encoded), strict=True):
        if LOST in read.labels:
            found.append(math.log(len(read.tokens)))
            continue
        labels = torch.tensor([read.labels])
        found.append(float(reasoner.task.loss(scores[None], labels).mean))
    return found


def _size(example: Example, reading: Recalling) -> int:
    """Tokens of an example's memory at most."""
    everything = Memory(text=example.text, numbers=tuple(range(len(example.places))))
    return reading.longest - max(0, reading.room.left(everything))
