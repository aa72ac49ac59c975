"""Batches for CogLTX: what its judge recalls at this moment, and what both are taught on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.tasks.finetuned_systems import WithHead
from lmlab.tasks.input_pipeline import (
    order_of,
    scores_of,
)
from lmlab.tasks.long_context.cogltx_model import (
    MARKS,
    WithMemory,
)
from lmlab.tasks.long_context.interventions import (
    Losses,
    intervene,
)
from lmlab.tasks.long_context.memrecall import (
    Memory,
    Room,
    best_first,
    compete,
)
from lmlab.tasks.long_context.relevance_scorer import lessons
from lmlab.tasks.task import LOST, Encoded, batch_of
from lmlab.training.config import TrainingConfig

if TYPE_CHECKING:
    from lmlab.tasks.long_context.memrecall_pipeline import (
        Example,
        PreparedExamples,
        Recalling,
    )


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

    def _losses(self, chosen: list[int]) -> Losses:
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
