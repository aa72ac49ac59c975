"""CogLTX training batches: memories recalled by the current judge, for judge and reasoner."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.models.cogltx import RELEVANCE_BUFFER, CogLTX
from lmlab.models.finetuned import ANSWER_TRUNCATED_LABEL, TaskHeadModel
from lmlab.tasks.input_pipeline import length_ordered_batches
from lmlab.tasks.long_context.memrecall import (
    MemoryBudget,
    WorkingMemory,
    coarse_scores,
    rank_blocks,
    score_blocks,
    scorer_examples,
)
from lmlab.tasks.long_context.relevance_labels import Losses, intervene
from lmlab.tasks.sequence_task import head_scores
from lmlab.tasks.task import EncodedExample, collate_examples
from lmlab.training.config import TrainingConfig

if TYPE_CHECKING:
    from lmlab.tasks.long_context.memrecall_pipeline import (
        EncodedMemRecallSplit,
        MemRecallExample,
        MemRecallPipeline,
    )


class MemRecallBatches:
    """Batches of memories recalled by the current judge; in training with all relevant blocks.

    In training a memory has all relevant blocks and the winners of one competition, as many as the
    last step retains. In other splits it is the recalled one, as in prediction. A batch depends on
    the weights and labels of its step, both in the checkpoint, and on the seed, the epoch and the
    batch index.
    """

    def __init__(
        self,
        reading: MemRecallPipeline,
        prepared: EncodedMemRecallSplit,
        system: CogLTX,
        config: TrainingConfig,
        *,
        training: bool,
    ) -> None:
        self.reading, self.prepared, self.system = reading, prepared, system
        self.seed, self.training = config.seed, training
        sizes = [_size(example, reading) for example in prepared.examples]
        self.order = length_ordered_batches(sizes, config, shuffle=training)

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

    def _batch(self, chosen: list[int], memories: Sequence[WorkingMemory]) -> Batch:
        rows = [self.prepared.rows[self.prepared.examples[index].row] for index in chosen]
        read = [self.reading.read(row, m) for row, m in zip(rows, memories, strict=True)]
        return collate_examples(read, self.reading.vocabulary.pad, chosen)

    def _taught(self, chosen: list[int], epoch: int, generator: np.random.Generator) -> Batch:
        examples = [self.prepared.examples[index] for index in chosen]
        settings, marks = self.reading.settings, self._marks(chosen)
        empty = [WorkingMemory(text=example.text, numbers=()) for example in examples]
        judge = partial(score_blocks, self.system.relevance_scorer)
        scores = coarse_scores(empty, judge, self.reading.budget, grouped=settings.grouped)
        memories = [
            reasoner_memory(
                memory,
                mark,
                example.contains_answer,
                won,
                self.reading.budget,
                keep=settings.retained_blocks[-1],
            )
            for memory, mark, example, won in zip(empty, marks, examples, scores, strict=True)
        ]
        if (
            self.reading.relevance_supervision == "interventions"
            and epoch >= settings.intervene_after
        ):
            certain = [example.contains_answer for example in examples]
            marks = intervene(memories, marks, certain, self._losses(chosen), settings)
            self._mark(chosen, marks)
        room, pad = self.reading.budget, self.reading.vocabulary.pad
        taught = [
            scorer_examples(example.text, mark, room, generator)
            for example, mark in zip(examples, marks, strict=True)
        ]
        condition: Batch | None = None
        for each in reversed(list(zip(*taught, strict=True))):
            condition = replace(collate_examples(each, pad, chosen), condition=condition)
        return replace(self._batch(chosen, memories), condition=condition)

    def _marks(self, chosen: list[int]) -> list[list[bool]]:
        """The relevance labels of each example; blocks with the answer are always relevant."""
        kept = self.system.get_buffer(RELEVANCE_BUFFER)[chosen].bool().tolist()
        examples = [self.prepared.examples[index] for index in chosen]
        return [
            [mark or certain for mark, certain in zip(row, each.contains_answer, strict=False)]
            for row, each in zip(kept, examples, strict=True)
        ]

    def _mark(self, chosen: list[int], marks: Sequence[Sequence[bool]]) -> None:
        kept = self.system.get_buffer(RELEVANCE_BUFFER)
        for index, mark in zip(chosen, marks, strict=True):
            kept[index, : len(mark)] = torch.tensor(mark, dtype=kept.dtype, device=kept.device)

    def _losses(self, chosen: list[int]) -> Losses:
        """The losses for `intervene`: of memories of these examples."""

        def losses(memories: Sequence[WorkingMemory], rows: Sequence[int]) -> list[float]:
            owners = [self.prepared.examples[chosen[row]].row for row in rows]
            read = [
                self.reading.read(self.prepared.rows[owner], memory)
                for owner, memory in zip(owners, memories, strict=True)
            ]
            return row_losses(self.system.reasoner, read)

        return losses


def reasoner_memory(
    empty: WorkingMemory,
    marks: Sequence[bool],
    certain: Sequence[bool],
    scores: dict[int, float],
    room: MemoryBudget,
    *,
    keep: int,
) -> WorkingMemory:
    """Training memory of the reasoner: all relevant blocks, then winners of the competition.

    Certain ones come first, if the relevant are too many. As many blocks as MemRecall's last step
    retains (0: as fit), or more if more are relevant.
    """
    sure = [number for number, is_sure in enumerate(certain) if is_sure]
    marked = [n for n, mark in enumerate(marks) if mark and not certain[n]]
    winners = [n for n in rank_blocks(scores) if not marks[n] and not certain[n]]
    most = max(keep or len(scores), len(sure) + len(marked))
    return room.fill(empty, [*sure, *marked, *winners][:most])


def row_losses(reasoner: TaskHeadModel, encoded: Sequence[EncodedExample]) -> list[float]:
    """-log p of the labels of each example, in nats per label, without dropout."""
    found = []
    for read, scores in zip(encoded, head_scores(reasoner, encoded), strict=True):
        if ANSWER_TRUNCATED_LABEL in read.labels:
            found.append(math.log(len(read.tokens)))
            continue
        labels = torch.tensor([read.labels])
        found.append(float(reasoner.task.loss(scores[None], labels).mean))
    return found


def _size(example: MemRecallExample, reading: MemRecallPipeline) -> int:
    """Maximum tokens of an example's memory."""
    everything = WorkingMemory(text=example.text, numbers=tuple(range(len(example.block_spans))))
    return reading.max_length - max(0, reading.budget.left(everything))
