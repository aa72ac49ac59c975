"""Collation and batching: length buckets under a token budget, mixed lengths, BPTT streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import NO_ENTITY
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of
from lmlab.core.system_protocols import SystemInfo
from lmlab.data.dataset import TokenDataset

TOKENS_PER_BATCH = 8192
"""Default number of tokens per batch."""


def pad_rows(
    rows: Sequence[Sequence[int]], system: SystemInfo, sources: Sequence[Sequence[int]] = ()
) -> Batch:
    """Collate rows into one right-padded batch on the system's device.

    `sources` holds one condition per row, or is empty.
    """
    pad = system.vocabulary.pad
    condition = Batch.collate(sources, pad) if sources else None
    return Batch.collate(rows, pad, condition=condition).to(device_of(system))


def preferred_tokens_per_batch(system: SystemInfo) -> int:
    """Token budget for inference; on a CPU the system may prefer another than the default."""
    budget = system.cpu_tokens_at_once
    return budget if budget is not None and device_of(system).type == "cpu" else TOKENS_PER_BATCH


def group_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices of rows grouped by length, each group at most that many positions with padding.

    A row longer than the budget is alone. Longest first, so that out-of-memory errors occur at
    once.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > tokens_per_batch:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


SHUFFLE_SHARD = 2**20
"""Sequences shuffled and sorted together; bounds the memory used for a huge dataset."""


class LengthBatches:
    """Length-bucketed batches: sequences of similar length together, to minimise padding.

    A batch of B sequences, the longest of T tokens, has B·T ≤ `tokens_per_batch`; a sequence longer
    than the budget is a batch of its own. Each epoch contains every sequence once. The order
    depends on seed and epoch only. For pairs T is the longer of the two sides.

    Up to `SHUFFLE_SHARD` sequences are sorted by length, ties in random order, cut into batches,
    and the batches shuffled; a larger dataset is processed shard by shard, shards in random order.
    """

    def __init__(
        self, dataset: TokenDataset, *, tokens_per_batch: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        if tokens_per_batch < 1:
            raise UserError(f"tokens_per_batch must be at least 1, got {tokens_per_batch}.")
        if seed < 0:
            raise UserError(f"seed must be 0 or more, got {seed}; try 0.")
        self.dataset = dataset
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.shuffle = shuffle

    def batches_per_epoch(self, number: int = 0) -> int:
        """Number of batches in an epoch; equal for all, as only equal lengths are permuted."""
        return sum(self._batches_per_shard)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Iterate over epoch `number` from batch `start` on; earlier batches are not built."""
        shards = np.arange(len(self._batches_per_shard))
        if self.shuffle:
            shards = self._generator(number).permutation(shards)
        for shard in shards:
            if start >= self._batches_per_shard[shard]:
                start -= self._batches_per_shard[shard]
                continue
            for rows in self._shard_rows(number, int(shard))[start:]:
                yield self._batch(rows)
            start = 0

    @cached_property
    def _batches_per_shard(self) -> list[int]:
        count = -(-len(self.dataset) // SHUFFLE_SHARD)
        return [len(self._batch_ends(np.sort(self._lengths(i)))) for i in range(count)]

    def _lengths(self, shard: int) -> NDArray[np.int64]:
        low, high = shard * SHUFFLE_SHARD, min((shard + 1) * SHUFFLE_SHARD, len(self.dataset))
        lengths = self.dataset.lengths_between(low, high)
        if self.dataset.has_condition:
            return np.maximum(lengths, self.dataset.condition_lengths_between(low, high))
        return lengths

    def _shard_rows(self, number: int, shard: int) -> list[NDArray[np.int64]]:
        """Sequence indices of each batch of a shard, in epoch order."""
        lengths = self._lengths(shard)
        generator = self._generator(number, shard)
        order = generator.permutation(len(lengths)) if self.shuffle else np.arange(len(lengths))
        order = self._arrange(order, lengths)
        ends = self._batch_ends(lengths[order])
        batches = [rows + shard * SHUFFLE_SHARD for rows in np.split(order, ends[:-1])]
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches

    def _arrange(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sequence indices of a shard in the order in which they are cut into batches."""
        return order[np.argsort(lengths[order], kind="stable")]

    def _batch_ends(self, lengths: NDArray[np.int64]) -> list[int]:
        """End index of each batch of sequences in this order; independent of the order of ties."""
        return _greedy_batch_ends(lengths, self.tokens_per_batch)

    def _generator(self, *path: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *path])

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        pad = self.dataset.vocabulary.pad
        condition = None
        if self.dataset.has_condition:
            conditions = [self.dataset.condition(int(row)) for row in rows]
            condition = Batch.collate(conditions, pad, rows=rows)
        sequences = [self.dataset[int(row)] for row in rows]
        batch = Batch.collate(sequences, pad, rows=rows, condition=condition)
        if not self.dataset.has_entities:
            return batch
        entities = [self.dataset.entities(int(row)) for row in rows]
        return replace(batch, entities=Batch.collate(entities, NO_ENTITY).tokens)


class MixedBatches(LengthBatches):
    """Batches with sequences of all lengths, in shuffled order.

    The length distribution of a batch matches the split's up to sampling noise, as needed by
    noise-contrastive losses whose noise texts have random lengths. There are as many batches as
    with `LengthBatches`, all of one size (or one less); padding may exceed the budget.
    """

    def _arrange(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return order

    def _batch_ends(self, lengths: NDArray[np.int64]) -> list[int]:
        batches = len(_greedy_batch_ends(np.sort(lengths), self.tokens_per_batch))
        return [len(lengths) * (batch + 1) // batches for batch in range(batches)]


def _greedy_batch_ends(lengths: NDArray[np.int64], budget: int) -> list[int]:
    """End index of each batch of ascending lengths, filled greedily up to the budget."""
    ends: list[int] = []
    low, total = 0, len(lengths)
    while low < total:
        # B·T grows with every sequence added, so binary search finds the last that fits.
        fits, fails = low + 1, min(total, low + max(1, budget // int(lengths[low]))) + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if (middle - low) * lengths[middle - 1] <= budget:
                fits = middle
            else:
                fails = middle
        ends.append(fits)
        low = fits
    return ends


class StreamBatches:
    """BPTT batches (truncated backpropagation through time): parallel streams of contiguous text.

    The M predicted tokens are divided among `batch_size` streams whose lengths differ by at most
    one; batch k holds tokens k·bptt to (k+1)·bptt - 1 of each stream, after one token of context.
    Every token is predicted exactly once per epoch. The state is carried from batch to batch.
    """

    def __init__(self, dataset: TokenDataset, *, batch_size: int, bptt: int) -> None:
        if dataset.layout.kind != "contiguous":
            raise UserError(
                f"streams need a contiguous corpus, got {dataset.layout.kind}; use contiguous:PATH."
            )
        if batch_size < 1 or bptt < 1:
            raise UserError(
                f"stream_batch_size and bptt must be at least 1, got {batch_size} and {bptt}."
            )
        self.dataset = dataset
        self.batch_size = min(batch_size, dataset.total_tokens)
        self.bptt = bptt
        self._starts = np.arange(self.batch_size + 1) * dataset.total_tokens // self.batch_size

    def batches_per_epoch(self, number: int = 0) -> int:
        """Number of batches in an epoch: the segments of the longest stream."""
        return int(-(-np.diff(self._starts).max() // self.bptt))

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        """Iterate from batch `start` on; streams are not shuffled, so all epochs are equal."""
        for index in range(start, self.batches_per_epoch(number)):
            yield self._batch(index)

    def _batch(self, index: int) -> Batch:
        lows = np.minimum(self._starts[:-1] + index * self.bptt, self._starts[1:])
        highs = np.minimum(lows + self.bptt, self._starts[1:])
        # Predicted token i is at position i + 1 of the stream, its context at i.
        sequences = [
            self.dataset.stream[low : high + 1] for low, high in zip(lows, highs, strict=True)
        ]
        return Batch.collate(sequences, self.dataset.vocabulary.pad, continues_previous=index > 0)


def shard_rows(batch: Batch, rank: int, world: int) -> Batch:
    """Shard of a batch: every `world`-th row from row `rank` on, with padding trimmed.

    A process without a row gets the first one cut to its context: it predicts nothing (count 0)
    but takes part in the step.
    """
    assert 0 <= rank < world, (rank, world)
    rows = range(rank, len(batch), world)
    if rows:
        return _trim_padding(batch.select(list(rows)))
    idle = batch.select([0])
    return _trim_padding(replace(idle, lengths=torch.ones_like(idle.lengths)))


def _trim_padding(batch: Batch) -> Batch:
    length = int(batch.lengths.max())
    condition = None if batch.condition is None else _trim_padding(batch.condition)
    entities = None if batch.entities is None else batch.entities[:, :length]
    return replace(batch, tokens=batch.tokens[:, :length], condition=condition, entities=entities)
