"""Train/validation/test splits of one reader: by block hash, every fifth, by position, shuffled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example, ExampleReader

SPLIT_BLOCK = 20
"""Of every 20 consecutive examples one is validation and one is test: 90/5/5 exactly."""


@dataclass(frozen=True)
class SelectedExamples:
    """The examples whose index (from 0) satisfies a predicate, in file order."""

    reader: ExampleReader
    predicate: Callable[[int], bool]
    rule: str
    """Description of the predicate; part of the identity, so it must determine it completely."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for index, example in enumerate(self.reader.read(report)):
            if self.predicate(index):
                yield example

    def identity(self) -> str:
        return f"selected:{self.rule}:{self.reader.identity()}"

    def files(self) -> Sequence[Path]:
        return self.reader.files()


def split_by_block(reader: ExampleReader, part: str, seed: int) -> SelectedExamples:
    """90/5/5 split (train, validation or test) by a hash of block number and seed.

    The choice is made within each block of 20 examples, so that a pass needs no total count, the
    proportions are exact, and text that drifts along a file is represented in each part.
    """
    return SelectedExamples(
        reader, lambda index: split_of_index(index, seed) == part, f"{part} of 90/5/5, seed {seed}"
    )


def split_of_index(index: int, seed: int) -> str:
    """The split (train, validation or test) of an example index under `split_by_block`."""
    block, position = divmod(index, SPLIT_BLOCK)
    validation, test = _held_out_positions(block, seed)
    return {validation: "validation", test: "test"}.get(position, "train")


def _held_out_positions(block: int, seed: int) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}:{block}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    validation = number % SPLIT_BLOCK
    test = (validation + 1 + number // SPLIT_BLOCK % (SPLIT_BLOCK - 1)) % SPLIT_BLOCK
    return validation, test


def split_every_fifth(reader: ExampleReader, part: str) -> SelectedExamples:
    """Test: the fifth, tenth, … example; train: the others."""
    if part == "test":
        return SelectedExamples(reader, lambda index: index % 5 == 4, "every fifth")
    return SelectedExamples(reader, lambda index: index % 5 != 4, "all but every fifth")


def split_by_position(reader: ExampleReader, part: str, total: int) -> SelectedExamples:
    """The first 90 %, next 5 % or last 5 % of a contiguous text, in order."""
    first, second = total * 90 // 100, total * 95 // 100
    low, high = {"train": (0, first), "validation": (first, second), "test": (second, total)}[part]
    return SelectedExamples(reader, lambda index: low <= index < high, f"{low} to {high}")


@dataclass(frozen=True)
class ShuffledExamples:
    """A fraction of the examples, shuffled once by seed; all are held in memory."""

    reader: ExampleReader
    seed: int
    low: float
    """Start, as a fraction of all examples."""
    high: float
    """End, as a fraction of all examples."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        examples = list(self.reader.read(report))
        order = np.random.default_rng(self.seed).permutation(len(examples))
        for index in order[round(self.low * len(order)) : round(self.high * len(order))]:
            yield examples[index]

    def identity(self) -> str:
        return f"shuffled:{self.seed}:{self.low}:{self.high}:{self.reader.identity()}"

    def files(self) -> Sequence[Path]:
        return self.reader.files()
