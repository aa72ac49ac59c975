"""CogLTX training batches: text blocks recalled by the current judge, for judge and reasoner."""

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
        pipeline: MemRecallPipeline,
        prepared: EncodedMemRecallSplit,
        system: CogLTX,
        config: TrainingConfig,
        *,
        training: bool,
    ) -> None:
        self.reading, self.prepared, self.system = pipeline, prepared, system
        self.seed, self.training = config.seed, training
        sizes = [_max_memory_tokens(example, pipeline) for example in prepared.examples]
        self.order = length_ordered_batches(sizes, config, shuffle=training)

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch_index, batch in enumerate(self.order.epoch(number, start), start=start):
            indices = batch.rows.tolist()
            generator = np.random.default_rng([self.seed, number, batch_index])
            if self.training:
                yield self._training_batch(indices, number, generator)
            else:
                yield self._recalled_batch(indices)

    def _recalled_batch(self, indices: list[int]) -> Batch:
        examples = [self.prepared.examples[index] for index in indices]
        results = self.reading.recall(self.system, examples)
        return self._batch(indices, [result.memory for result in results])

    def _batch(self, indices: list[int], memories: Sequence[WorkingMemory]) -> Batch:
        rows = [self.prepared.rows[self.prepared.examples[index].row] for index in indices]
        encoded = [self.reading.read(row, m) for row, m in zip(rows, memories, strict=True)]
        return collate_examples(encoded, self.reading.vocabulary.pad, indices)

    def _training_batch(
        self, indices: list[int], epoch: int, generator: np.random.Generator
    ) -> Batch:
        examples = [self.prepared.examples[index] for index in indices]
        settings, labels = self.reading.settings, self._relevance(indices)
        empty = [WorkingMemory(text=example.text, numbers=()) for example in examples]
        judge = partial(score_blocks, self.system.relevance_scorer)
        scores = coarse_scores(empty, judge, self.reading.budget, grouped=settings.grouped)
        memories = [
            reasoner_memory(
                memory,
                block_labels,
                example.contains_answer,
                coarse,
                self.reading.budget,
                retained_count=settings.retained_blocks[-1],
            )
            for memory, block_labels, example, coarse in zip(
                empty, labels, examples, scores, strict=True
            )
        ]
        if (
            self.reading.relevance_supervision == "interventions"
            and epoch >= settings.intervene_after
        ):
            contains_answer = [example.contains_answer for example in examples]
            labels = intervene(memories, labels, contains_answer, self._losses(indices), settings)
            self._set_relevance(indices, labels)
        budget, pad = self.reading.budget, self.reading.vocabulary.pad
        scorer_inputs = [
            scorer_examples(example.text, block_labels, budget, generator)
            for example, block_labels in zip(examples, labels, strict=True)
        ]
        condition: Batch | None = None
        for inputs in reversed(list(zip(*scorer_inputs, strict=True))):
            condition = replace(collate_examples(inputs, pad, indices), condition=condition)
        return replace(self._batch(indices, memories), condition=condition)

    def _relevance(self, indices: list[int]) -> list[list[bool]]:
        """The relevance labels of each example; blocks with the answer are always relevant."""
        stored = self.system.get_buffer(RELEVANCE_BUFFER)[indices].bool().tolist()
        examples = [self.prepared.examples[index] for index in indices]
        return [
            [
                label or has_answer
                for label, has_answer in zip(row, example.contains_answer, strict=False)
            ]
            for row, example in zip(stored, examples, strict=True)
        ]

    def _set_relevance(self, indices: list[int], labels: Sequence[Sequence[bool]]) -> None:
        stored = self.system.get_buffer(RELEVANCE_BUFFER)
        for index, block_labels in zip(indices, labels, strict=True):
            stored[index, : len(block_labels)] = torch.tensor(
                block_labels, dtype=stored.dtype, device=stored.device
            )

    def _losses(self, indices: list[int]) -> Losses:
        """The losses for `intervene`: of memories of these examples."""

        def losses(memories: Sequence[WorkingMemory], rows: Sequence[int]) -> list[float]:
            owners = [self.prepared.examples[indices[row]].row for row in rows]
            encoded = [
                self.reading.read(self.prepared.rows[owner], memory)
                for owner, memory in zip(owners, memories, strict=True)
            ]
            return row_losses(self.system.reasoner, encoded)

        return losses


def reasoner_memory(
    empty: WorkingMemory,
    labels: Sequence[bool],
    contains_answer: Sequence[bool],
    scores: dict[int, float],
    budget: MemoryBudget,
    *,
    retained_count: int,
) -> WorkingMemory:
    """Training memory of the reasoner: all relevant blocks, then winners of the competition.

    Certain ones come first, if the relevant are too many. As many blocks as MemRecall's last step
    retains (0: as fit), or more if more are relevant.
    """
    answer_blocks = [number for number, has_answer in enumerate(contains_answer) if has_answer]
    labelled = [n for n, label in enumerate(labels) if label and not contains_answer[n]]
    winners = [n for n in rank_blocks(scores) if not labels[n] and not contains_answer[n]]
    max_blocks = max(retained_count or len(scores), len(answer_blocks) + len(labelled))
    return budget.fill(empty, [*answer_blocks, *labelled, *winners][:max_blocks])


def row_losses(reasoner: TaskHeadModel, encoded: Sequence[EncodedExample]) -> list[float]:
    """-log p of the labels of each example, in nats per label, without dropout."""
    losses = []
    for example, scores in zip(encoded, head_scores(reasoner, encoded), strict=True):
        if ANSWER_TRUNCATED_LABEL in example.labels:
            losses.append(math.log(len(example.tokens)))
            continue
        labels = torch.tensor([example.labels])
        losses.append(float(reasoner.task.loss(scores[None], labels).mean))
    return losses


def _max_memory_tokens(example: MemRecallExample, pipeline: MemRecallPipeline) -> int:
    """Maximum tokens of an example's memory."""
    full_memory = WorkingMemory(text=example.text, numbers=tuple(range(len(example.block_spans))))
    return pipeline.max_length - max(0, pipeline.budget.left(full_memory))
