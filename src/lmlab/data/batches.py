"""Batches of a dataset: by length under a budget, or lanes of a stream; each exactly resumable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import NO_ENTITY
from lmlab.core.errors import UserError
from lmlab.data.dataset import TokenDataset

SHUFFLE_SHARD = 2**20
"""Sequences that are shuffled and sorted together: what bounds the memory of a huge dataset."""


class LengthBatches:
    """Sequences of like length side by side, so that little is padding.

    A batch of B sequences, the longest of T tokens, has B·T ≤ `tokens_per_batch`; a sequence longer
    than the budget is a batch of its own. Every sequence comes once in an epoch. The order is a
    function of seed and epoch only. For pairs T is the longer of the two sides.

    Up to `SHUFFLE_SHARD` sequences are sorted by length, equal lengths in random order, cut into
    batches, and the batches shuffled; a larger dataset does so shard by shard, the shards in random
    order.
    """

    def __init__(
        self, dataset: TokenDataset, *, tokens_per_batch: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        if tokens_per_batch < 1:
            raise UserError(f"a batch needs a budget of at least 1 token, not {tokens_per_batch}.")
        if seed < 0:
            raise UserError(f"a seed must be 0 or more, not {seed}.")
        self.dataset = dataset
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.shuffle = shuffle

    def batches_per_epoch(self, number: int = 0) -> int:
        """Batches of epoch `number`; the same for all, as only equal lengths change places."""
        return sum(self._batches_per_shard)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from batch `start` on; those before it are not built."""
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

    def split(self, batch: Batch, rank: int, world: int) -> Batch:
        """The rows of a batch that process `rank` of `world` works on."""
        return shard_rows(batch, rank, world)

    @cached_property
    def _batches_per_shard(self) -> list[int]:
        count = -(-len(self.dataset) // SHUFFLE_SHARD)
        return [len(self._ends(np.sort(self._lengths(i)))) for i in range(count)]

    def _lengths(self, shard: int) -> NDArray[np.int64]:
        low, high = shard * SHUFFLE_SHARD, min((shard + 1) * SHUFFLE_SHARD, len(self.dataset))
        lengths = self.dataset.lengths_between(low, high)
        if self.dataset.has_condition:
            return np.maximum(lengths, self.dataset.condition_lengths_between(low, high))
        return lengths

    def _shard_rows(self, number: int, shard: int) -> list[NDArray[np.int64]]:
        """Indices of the sequences of each batch of a shard, in the order of the epoch."""
        lengths = self._lengths(shard)
        generator = self._generator(number, shard)
        order = generator.permutation(len(lengths)) if self.shuffle else np.arange(len(lengths))
        order = self._arranged(order, lengths)
        ends = self._ends(lengths[order])
        batches = [rows + shard * SHUFFLE_SHARD for rows in np.split(order, ends[:-1])]
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches

    def _arranged(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of the sequences of a shard in the order in which they are cut into batches."""
        return order[np.argsort(lengths[order], kind="stable")]

    def _ends(self, lengths: NDArray[np.int64]) -> list[int]:
        """Where each batch of sequences so arranged ends; as many for any order of equal ones."""
        return _cuts(lengths, self.tokens_per_batch)

    def _generator(self, *path: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *path])

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        pad = self.dataset.vocabulary.pad
        condition = None
        if self.dataset.has_condition:
            given = [self.dataset.condition(int(row)) for row in rows]
            condition = Batch.collate(given, pad, rows=rows)
        sequences = [self.dataset[int(row)] for row in rows]
        batch = Batch.collate(sequences, pad, rows=rows, condition=condition)
        if not self.dataset.has_entities:
            return batch
        told = [self.dataset.entities(int(row)) for row in rows]
        return replace(batch, entities=Batch.collate(told, NO_ENTITY).tokens)


class MixedBatches(LengthBatches):
    """The same with sequences of all lengths in each batch, as they come.

    So a batch has the lengths of the whole split but for chance, as a contrast with texts needs
    that have lengths of their own. There are as many batches as of like lengths, all of one number
    of sequences (or one less); what they are padded with goes beyond the budget.
    """

    def _arranged(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return order

    def _ends(self, lengths: NDArray[np.int64]) -> list[int]:
        batches = len(_cuts(np.sort(lengths), self.tokens_per_batch))
        return [len(lengths) * (batch + 1) // batches for batch in range(batches)]


def _cuts(lengths: NDArray[np.int64], budget: int) -> list[int]:
    """Where each batch of ascending lengths ends, as many in it as the budget allows."""
    ends: list[int] = []
    low, total = 0, len(lengths)
    while low < total:
        # B·T grows with every sequence added, so the last that fits is found by halving.
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
    """Contiguous text for truncated backpropagation through time (BPTT): parallel streams in
    segments.

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
        """Batches of an epoch: the spans of the longest lane."""
        return int(-(-np.diff(self._starts).max() // self.bptt))

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches from batch `start` on; a stream has one order, so all epochs are alike."""
        for place in range(start, self.batches_per_epoch(number)):
            yield self._batch(place)

    def split(self, batch: Batch, rank: int, world: int) -> Batch:
        """The lanes that process `rank` of `world` works on, the same ones in every batch."""
        return shard_rows(batch, rank, world)

    def _batch(self, place: int) -> Batch:
        lows = np.minimum(self._starts[:-1] + place * self.bptt, self._starts[1:])
        highs = np.minimum(lows + self.bptt, self._starts[1:])
        # Predicted token i stands at i + 1 of the stream, its context at i.
        sequences = [
            self.dataset.stream[low : high + 1] for low, high in zip(lows, highs, strict=True)
        ]
        return Batch.collate(sequences, self.dataset.vocabulary.pad, carries=place > 0)


def shard_rows(batch: Batch, rank: int, world: int) -> Batch:
    """Every `world`-th row from row `rank` on, padded no longer than they need.

    A process without a row of its own gets the first one cut to its context: it predicts nothing
    (count 0), yet takes part in the step.
    """
    assert 0 <= rank < world, (rank, world)
    rows = range(rank, len(batch), world)
    if rows:
        return _trimmed(batch.select(list(rows)))
    idle = batch.select([0])
    return _trimmed(replace(idle, lengths=torch.ones_like(idle.lengths)))


def _trimmed(batch: Batch) -> Batch:
    longest = int(batch.lengths.max())
    condition = None if batch.condition is None else _trimmed(batch.condition)
    entities = None if batch.entities is None else batch.entities[:, :longest]
    return replace(batch, tokens=batch.tokens[:, :longest], condition=condition, entities=entities)
