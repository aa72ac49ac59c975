"""Batches of CogQA's two training stages: inputs of similar length, and whole graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmlab.core.batch import Batch
from lmlab.data.batches import LengthBatches
from lmlab.layers.span_pointers import label_tensor
from lmlab.tasks.multihop.graph_examples import (
    GraphExample,
    PointerLabels,
    SpanExample,
)
from lmlab.training.config import TrainingConfig


class SpanExampleBatches:
    """Batches of inputs of similar length (`LengthBatches`), with their labels."""

    def __init__(
        self, examples: Sequence[SpanExample], config: TrainingConfig, pad: int, *, shuffle: bool
    ) -> None:
        self.examples, self.pad = examples, pad
        self.order = LengthBatches(
            _Lengths(examples, pad),  # type: ignore[arg-type]
            tokens_per_batch=config.tokens_per_batch,
            seed=config.seed,
            shuffle=shuffle,
        )

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.order.epoch(number, start):
            chosen = [self.examples[row] for row in batch.rows.tolist()]
            yield replace(batch, labels=label_tensor([each.labels for each in chosen]))


class GraphExampleBatches:
    """Batches of whole graphs within the token budget on average, in random order."""

    def __init__(
        self,
        examples: Sequence[GraphExample],
        config: TrainingConfig,
        pad: int,
        *,
        first: int = 0,
        shuffle: bool,
    ) -> None:
        self.examples, self.pad, self.seed, self.shuffle = examples, pad, config.seed, shuffle
        self.first = first
        """Index of the first of these graphs among all."""
        tokens = sum(len(each.inputs) * _longest(each) for each in examples)
        self.size = max(1, config.tokens_per_batch * len(examples) // max(tokens, 1))

    def batches_per_epoch(self, number: int = 0) -> int:
        return -(-len(self.examples) // self.size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        order = np.arange(len(self.examples))
        if self.shuffle:
            order = np.random.default_rng([self.seed, number]).permutation(order)
        for low in range(start * self.size, len(order), self.size):
            yield self._batch(order[low : low + self.size].tolist())

    def _batch(self, chosen: Sequence[int]) -> Batch:
        tokens: list[list[int]] = []
        rows: list[int] = []
        labels: list[PointerLabels] = []
        for number in chosen:
            example = self.examples[number]
            tokens += [each.tokens for each in example.inputs]
            rows += [self.first + number] * len(example.inputs)
            labels += example.labels
        batch = Batch.collate(tokens, self.pad, rows=rows)
        return replace(batch, labels=label_tensor(labels))


def _longest(example: GraphExample) -> int:
    return max(len(each.tokens) for each in example.inputs)


class _Lengths:
    """The part of a dataset that `LengthBatches` needs, for inputs."""

    has_condition = False
    has_entities = False

    def __init__(self, examples: Sequence[SpanExample], pad: int) -> None:
        self._tokens = [np.array(each.input.tokens) for each in examples]
        self._lengths = np.array([len(each) for each in self._tokens])
        self.vocabulary = _Pad(pad)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Any:
        return self._tokens[index]

    def lengths_between(self, low: int, high: int) -> Any:
        return self._lengths[low:high]


@dataclass(frozen=True)
class _Pad:
    pad: int
