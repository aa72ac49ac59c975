"""Co-occurrence counting (GloVe) in bounded memory: sorted runs on disk, merged and shuffled.

    X_ij = Σ 1/d over all pairs of positions d ≤ window words apart in a sentence, of words i and j

(Pennington et al. 2014), for contexts on both sides, so X is symmetric. Words that are unknown or
special tokens are left out first, which brings the words around them together. A pair (i, j) is a
key i V + j. Counts are summed in memory up to a budget; then they are written to disk as a run,
sorted by key. The merged runs are dealt out at random to buckets that fit into memory, so that an
epoch visits all pairs in random order without ever holding them all. Files are unnamed: the
operating system removes them when the process ends, even if it is killed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from lmlab.core.atomic_files import TEMPORARY, telling_disk_errors

PAIR_COUNT = np.dtype([("key", "<i8"), ("count", "<f8")])
"""A key and its count; 16 bytes."""
BYTES_PER_PAIR = 80
"""Peak bytes per pair while pairs are sorted and summed, working copies included."""
MERGED_AT_ONCE = 16
"""Sorted runs merged in one pass, so that enough pairs of each are in memory."""
PairCounts = NDArray[np.void]
"""(N,) records of PAIR_COUNT."""


@dataclass(frozen=True, kw_only=True)
class WordStream:
    """Ids of a text, in memory or on disk, and which of them are words, or end a sentence."""

    tokens: NDArray[np.generic]
    is_word: NDArray[np.bool_]
    """(V,)"""
    is_boundary: NDArray[np.bool_]
    """(V,)"""

    def chunks(
        self, size: int, overlap: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
        """Words, the number of their sentence, and how many were in the chunk before, in chunks.

        Each chunk begins with the last `overlap` words of the one before.
        """
        words, sentences, sentence = np.empty(0, np.int64), np.empty(0, np.int64), 0
        for low in range(0, len(self.tokens), size):
            ids = np.asarray(self.tokens[low : low + size]).astype(np.int64)
            numbers = sentence + np.cumsum(self.is_boundary[ids])
            sentence = int(numbers[-1])
            kept = self.is_word[ids]
            before = words[len(words) - min(overlap, len(words)) :]
            words = np.concatenate([before, ids[kept]])
            sentences = np.concatenate([sentences[len(sentences) - len(before) :], numbers[kept]])
            yield words, sentences, len(before)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive pairs of a file."""

    file: PairFile
    start: int
    pairs: int

    def read(self, start: int, count: int) -> PairCounts:
        """At most `count` pairs from number `start` of the segment on."""
        return self.file.read(self.start + start, min(count, self.pairs - start))


class PairFile:
    """Pairs and their counts in an unnamed file, appended in segments and read by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 lives as long as this object
            dir=folder, prefix=TEMPORARY
        )
        self._pairs = 0

    def append(self, pairs: PairCounts) -> Segment:
        """Write pairs at the end."""
        with telling_disk_errors(self._folder):
            self._file.seek(0, 2)
            self._file.write(pairs.tobytes())
        segment = Segment(file=self, start=self._pairs, pairs=len(pairs))
        self._pairs += len(pairs)
        return segment

    def read(self, start: int, count: int) -> PairCounts:
        """`count` pairs from `start` on."""
        self._file.seek(start * PAIR_COUNT.itemsize)
        return np.frombuffer(self._file.read(count * PAIR_COUNT.itemsize), PAIR_COUNT)


Bucket = Sequence[Segment]
"""Random pairs that fit into memory together, in pieces."""


@dataclass(frozen=True, kw_only=True)
class Cooccurrences:
    """The counts of all pairs of words that occur together, in buckets of random pairs."""

    buckets: Sequence[Bucket]
    runs: int
    """Sorted runs that were merged; 1 if all pairs fitted into memory."""

    @property
    def pairs(self) -> int:
        """Number of pairs with a count."""
        return sum(map(bucket_size, self.buckets))

    def batches_per_epoch(self, size: int) -> int:
        """Number of batches; no batch spans two buckets."""
        return sum(-(-bucket_size(bucket) // size) for bucket in self.buckets)

    def batches(self, size: int, *, seed: int, epoch: int, start: int = 0) -> Iterator[PairCounts]:
        """The pairs of an epoch in random order, in batches, from number `start` on."""
        for index in np.random.default_rng([seed, epoch]).permutation(len(self.buckets)):
            bucket = self.buckets[index]
            batches = -(-bucket_size(bucket) // size)
            if start >= batches:
                start -= batches
                continue
            pairs = np.concatenate([segment.read(0, segment.pairs) for segment in bucket])
            pairs = pairs[np.random.default_rng([seed, epoch, int(index)]).permutation(len(pairs))]
            for low in range(start * size, len(pairs), size):
                yield pairs[low : low + size]
            start = 0


def bucket_size(bucket: Bucket) -> int:
    """The number of pairs of a bucket."""
    return sum(segment.pairs for segment in bucket)


def count_cooccurrences(
    stream: WordStream, *, window: int, memory_mb: float, folder: Path, seed: int = 0
) -> Cooccurrences:
    """Count the co-occurrences of a text, with at most `memory_mb` MB of pairs in memory.

    `folder` is where the unnamed files are; `seed` deals out the pairs. Cost: 2 · window pairs for
    each word, sorted in pieces; on disk 16 bytes for each pair of all runs, once more for
    each pass of merging.
    """
    capacity = max(64, int(memory_mb * 2**20) // BYTES_PER_PAIR)
    runs = first_runs = _sorted_runs(stream, window, capacity, PairFile(folder))
    block = max(1, capacity // (2 * MERGED_AT_ONCE))
    while len(runs) > MERGED_AT_ONCE:
        groups = range(0, len(runs), MERGED_AT_ONCE)
        runs = [_merged(runs[first : first + MERGED_AT_ONCE], block) for first in groups]
    total = sum(run.pairs for run in runs)
    buckets: list[list[Segment]] = [[] for _ in range(max(1, -(-total // (capacity // 2))))]
    shuffled, generator = PairFile(folder), np.random.default_rng(seed)
    for merged in _joined(merge_runs(runs, block=block), size=capacity // 4):
        which = generator.integers(len(buckets), size=len(merged))
        for index, bucket in enumerate(buckets):
            bucket.append(shuffled.append(merged[which == index]))
    return Cooccurrences(buckets=[bucket for bucket in buckets if bucket], runs=len(first_runs))


def _joined(blocks: Iterator[PairCounts], size: int) -> Iterator[PairCounts]:
    """Consecutive blocks joined to at least `size` pairs, so that buckets have few segments."""
    held: list[PairCounts] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= size:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _merged(runs: Sequence[Segment], block: int) -> Segment:
    """The runs merged into one, at the end of their file."""
    pieces = [runs[0].file.append(pairs) for pairs in merge_runs(runs, block=block)]
    return Segment(file=runs[0].file, start=pieces[0].start, pairs=bucket_size(pieces))


def _sorted_runs(stream: WordStream, window: int, capacity: int, file: PairFile) -> list[Segment]:
    """The pairs of a text, summed and sorted as far as they fit into memory."""
    size, runs, held = len(stream.is_word), list[Segment](), np.empty(0, PAIR_COUNT)
    for words, sentences, old in stream.chunks(max(1, capacity // (4 * window)), window):
        held = sum_by_key(np.concatenate([held, *_pairs(words, sentences, old, window, size)]))
        if len(held) > capacity // 2:
            runs.append(file.append(held))
            held = np.empty(0, PAIR_COUNT)
    return [*runs, file.append(held)] if len(held) else runs


def _pairs(
    words: NDArray[np.int64], sentences: NDArray[np.int64], old: int, window: int, size: int
) -> Iterator[PairCounts]:
    """Each pair of positions of a chunk at most `window` apart, both ways, once in all chunks.

    The first `old` words belong to the chunk before: pairs among them have been counted.
    """
    for distance in range(1, min(window, len(words) - 1) + 1):
        first = max(0, old - distance)
        left, right = words[first : len(words) - distance], words[first + distance :]
        same = sentences[first : len(words) - distance] == sentences[first + distance :]
        left, right = left[same], right[same]
        pairs = np.empty(2 * len(left), PAIR_COUNT)
        pairs["key"] = np.concatenate([left * size + right, right * size + left])
        pairs["count"] = 1 / distance
        yield pairs


def sum_by_key(pairs: PairCounts) -> PairCounts:
    """The sum of the counts of each key, sorted by key."""
    if not len(pairs):
        return pairs
    order = np.argsort(pairs["key"], kind="stable")
    keys = pairs["key"][order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    summed = np.empty(len(starts), PAIR_COUNT)
    summed["key"] = keys[starts]
    summed["count"] = np.add.reduceat(pairs["count"][order], starts)
    return summed


def merge_runs(runs: Sequence[Segment], *, block: int) -> Iterator[PairCounts]:
    """Merge sorted runs, of each of which at most `block` pairs are in memory.

    Up to the smallest of the last keys held, no run can have more pairs to come.
    """
    held = [run.read(0, block) for run in runs]
    read = [len(pairs) for pairs in held]
    while any(len(pairs) for pairs in held):
        unfinished = [
            pairs["key"][-1]
            for run, pairs, done in zip(runs, held, read, strict=True)
            if done < run.pairs
        ]
        limit = min(unfinished, default=np.iinfo(np.int64).max)
        counts = [int(np.searchsorted(pairs["key"], limit, side="right")) for pairs in held]
        yield sum_by_key(np.concatenate([pairs[:n] for pairs, n in zip(held, counts, strict=True)]))
        for index, run in enumerate(runs):
            held[index] = held[index][counts[index] :]
            if not len(held[index]) and read[index] < run.pairs:
                held[index] = run.read(read[index], block)
                read[index] += len(held[index])
